"""`heterps trace`: what the workers of a run did when, for Perfetto."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from heterps.cli.output import check_folders, examples, print_json, write_file

EXAMPLES = examples(
    "heterps trace runs/ctr-1 --out trace.json",
    "heterps trace runs/ctr-1 --json",
    note="Open the file at https://ui.perfetto.dev, which reads it in your browser, or at chrome://tracing.",
)


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("trace.json"),
    json: Annotated[bool, typer.Option("--json", help="Print the trace itself, and write no file.")] = False,
) -> None:
    """Write what happened when in a run, as a trace for Perfetto: a track for each worker, with what it computed,
    communicated and waited, and one for each lane, with its steps and the waits of its policy between them."""
    from heterps.report.perfetto import perfetto_trace
    from heterps.report.terminal.consoles import make_console

    if json:
        print_json(perfetto_trace(run))
        return
    check_folders(trace=out)
    made = perfetto_trace(run)
    write_file(out, "trace", partial(_write, made))
    spans = sum(event["ph"] == "X" for event in made["traceEvents"])
    make_console().print(
        f"{out}: {spans:,} spans of workers and lanes. Open it at https://ui.perfetto.dev", soft_wrap=True
    )


def _write(made: dict[str, Any], path: Path) -> None:
    from json import dump

    with path.open("w", encoding="utf-8") as file:
        dump(made, file)
