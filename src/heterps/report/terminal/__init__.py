"""Tables, bars and lines on a terminal, at most as wide as it is.

One file a view: *_table (plans, profiles, prices, servers, stages, simulations), *_progress (training, planning),
run_summary (the end of a run), running (`heterps status`), timeline and *_chart (drawn with characters).

Read first: tables.py, then run_summary.py.
"""
