"""Tables, bars and lines on a terminal, at most as wide as it is.

shared      consoles (where all commands print), tables (how tables look)
plans       plan_table, plan_explained, plan_rented, frontier_view, trials_table, profile_table, price_table
running     progress, training_progress, staged_progress (bars while a command runs), running (`heterps status`)
runs        run_summary (the end of a run), stage_table, stage_bar, timeline (drawn with characters)
simulated   simulation_table, pace_table, virtual_table, spot_table
others      checkpoint_tables, description_table (of data), server_table

Read first: tables.py, then run_summary.py.
"""
