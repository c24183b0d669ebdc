"""Pages for a browser, each one file without outside parts.

run          the report of a run          frontier     cost against throughput
simulation   policies on their clocks     virtual      policies by what a job learns
charts, timeline, stages                  what pages draw

Read first: run.py, then charts.py.
"""
