"""`heterps ui`: look at runs in a browser, alive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json
from heterps.cli.serve import EXIT_CODES
from heterps.report.terminal.consoles import make_console

NICENESS = 10
"""How much this process stands back where a job uses all cores: pages wait, training does not."""

EXAMPLES = examples(
    "heterps ui",
    "heterps ui runs --port 0 --json",
    "heterps ui runs --host 0.0.0.0 --token-file token",
    note="The address has a token: anybody who has it may look at the runs, and stop or change jobs that run. "
    "TOKEN/metrics tells Prometheus about jobs that run.",
)


def ui(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="A folder of runs, or one run.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8100,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token, or set HETERPS_TOKEN.  [default: a new one each time]"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the address as JSON.")] = False,
) -> int:
    """Look at runs in a browser: a list, each run alive while it trains, runs side by side.

    A job that runs can be stopped, scaled and planned again from its page. It ends with Ctrl-C; jobs go on without it.
    """
    from heterps.serving.listen import read_token
    from heterps.ui.serve import serve_ui

    console = make_console(stderr=json, soft_wrap=True)

    def ready(url: str) -> None:
        if json:
            print_json({"url": url})
        else:
            console.print(f"{runs} at {url}   Ctrl-C stops", markup=False, highlight=False)

    if hasattr(os, "nice"):  # Windows has none
        os.nice(NICENESS)
    return EXIT_CODES.get(serve_ui(runs, host, port, read_token(token_file), ready), 0)
