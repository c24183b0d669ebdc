"""The pages of `heterps ui`: all runs of a folder, each of them alive while it trains, and what was done in a browser.

    browser                                        this process
      GET  TOKEN/                  list        <-  runs.py     what files of run folders say; read again when changed
      GET  TOKEN/run/NAME/         one run     <-  watch.py    the report of the run, and how it stands now
      GET  TOKEN/run/NAME/events   its changes <-              looked at once a second, however many pages are open
      POST TOKEN/run/NAME/stop     and others  ->  actions.py  --> the job, as `heterps scale` and others ask it
      GET  TOKEN/run/NAME/what-if  other plans <-  what_if.py  the exact planner, by the profile of the run's job
      GET  TOKEN/compare           several runs side by side
      GET  TOKEN/metrics           running jobs for Prometheus

`app` is the HTTP application, `serve` its process. Read first: app.py, then watch.py.

A page is HTML that templates of report/page make; a change is the new HTML of its body, or of its section Now. Whoever
does not know the token, which is the first part of every address, gets nothing.
"""
