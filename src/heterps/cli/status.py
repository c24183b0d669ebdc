"""`heterps status`: how far a running job is, and what its stages do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.output import examples, print_json
from heterps.errors import PeerLost, RunError
from heterps.report.terminal.consoles import make_console

if TYPE_CHECKING:
    from heterps.training.run.control import Found

WATCH_S = 1.0
EXAMPLES = examples(
    "heterps status runs/ctr-1",
    "heterps status runs/ctr-1 --watch",
    "heterps status runs/ctr-1 --json",
    note="Exit code 6: no job runs there; 8: the job did not answer.",
)


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that is running.")],
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second until the job ends.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch a line each time.")] = False,
) -> None:
    """Show how far a running job is: samples, USD, and each stage's samples/s, utilisation, queue and staleness."""
    from json import loads

    from heterps.report.terminal.running import status_table
    from heterps.training.run.control import find

    found = find(run)
    told = loads(ask_status(found))
    if watch:
        _watch(found, told, as_json=json)
    elif json:
        print_json(told, indent=1)
    else:
        make_console().print(status_table(str(run), told))


def ask_status(found: Found) -> str:
    """The status of a running job as JSON. Raises RunError where no job runs there."""
    from heterps.training.run.commands import AskStatus

    told = found.ask(AskStatus())
    if told.is_error:
        raise RunError(f"{found.folder}: {told.text}")
    return told.text


def _watch(found: Found, told: dict[str, Any], *, as_json: bool) -> None:
    """Shows the status again and again until Ctrl-C or until the job ends, which is no error."""
    import time
    from contextlib import suppress
    from json import loads

    from rich.live import Live

    from heterps.report.terminal.running import status_table
    from heterps.training.run.control import find

    console = make_console(stderr=as_json)
    with suppress(KeyboardInterrupt, RunError, PeerLost), Live(console=console, auto_refresh=False) as live:
        while True:
            if as_json:
                print_json(told)
            else:
                live.update(status_table(str(found.folder), told), refresh=True)
            time.sleep(WATCH_S)
            told = loads(ask_status(find(found.folder)))
