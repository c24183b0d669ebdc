"""Tables, bars and lines on a terminal, at most as wide as it is.

One file per view: *_table (plans, profiles, prices, servers, stages, simulations), progress and *_progress (bars while
a command runs), run_summary (the end of a run), running (`heterps status`), timeline (drawn with characters).

Read first: tables.py, then run_summary.py.
"""
