"""What people look at: tables and bars on a terminal, pages for a browser, and the words and figures of both.

terminal/   one file a table or bar              page/      reports as HTML, with their charts
figures     numbers as people write them         meaning    what a figure means: good, poor, a warning
summary     summary.json of a run                read_run   a run folder as it was left

Read first: summary.py, terminal/run_summary.py, page/run.py.
"""
