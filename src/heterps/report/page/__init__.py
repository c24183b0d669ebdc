"""Pages for a browser, each one file that loads nothing.

run          the report of a run          frontier     cost against throughput
simulation   policies on their clocks     virtual      policies by what a job learns
stages       the stages of a run          *.html.j2    what each page looks like
charts       every chart, as SVG          timeline     what workers did when
panel        axes, captions and legends   layer_chain  a model as its layers, with times
planned      a plan and those beside it   alternatives the frontier, its points as buttons
what_if      fields to plan again with    details      what the report says of workers and layers
live         a run while it trains        runs         the list of runs, and runs side by side
terms        seconds of a batch as bars   traffic      what travelled, and what was saved
templates    renders a page               style.css    the look of all pages and pictures

Read first: run.py and run.html.j2, then charts.py.
"""
