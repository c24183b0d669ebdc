"""`heterps report`: look at a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json
from heterps.report.terminal.consoles import make_console

EXAMPLES = examples(
    "heterps report runs/ctr-1",
    "heterps report runs/ctr-1 --frontier",
)


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Draw the run among the cheapest plans for other throughputs.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
) -> None:
    """Print the summary of a run and write its report.html anew; a run that has not ended is summarised so far."""
    from heterps.report.page.run import render_run
    from heterps.report.read_run import read_run
    from heterps.report.run_details import read_details, with_frontier, with_quick_frontier
    from heterps.report.terminal.run_summary import print_summary
    from heterps.training.run.folder import Run

    recorded = read_run(run)
    details = read_details(Run(run), recorded.job)
    draw = with_frontier if frontier else with_quick_frontier
    details = draw(details, recorded.job, recorded.plan)
    page = render_run(recorded.job, recorded.plan, recorded.summary, recorded.metrics, details)
    Run(run).write("report.html", page)
    if json:
        print_json(recorded.summary, indent=1)
    else:
        print_summary(make_console(), run, recorded.summary)
