"""What people look at: tables and bars on a terminal, pages for a browser, and the words and figures of both.

terminal/   one file a table or bar              page/      reports as HTML, with their charts
figures     numbers as people write them         meaning    what a figure means: good, poor, a warning
summary     summary.json of a run                read_run   a run folder as it was left

emulated    marks for emulated units             names      long names of layers in narrow columns
stage_figures  what stages did, in words         traffic    bytes between processes, in words
run_details what else a run folder tells         worker_times, trace_spans   what workers did when
observed    policies of a run, by its traces     perfetto   the same for Perfetto
prometheus  what monitoring is told of runs; prometheus_servers of servers; exposition writes both

Read first: summary.py, terminal/run_summary.py, page/run.py.
"""
