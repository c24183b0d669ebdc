"""`heterps scale`: run a stage of a running job with more or fewer workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json
from heterps.errors import ConfigError

EXAMPLES = examples(
    "heterps scale runs/ctr-1 --stage 1 --count 4",
    note="Exit code 2: it cannot be, and the job goes on as it was; 6: no job runs there; 8: the job did not answer.",
)


def scale(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that is running.")],
    stage: Annotated[int, typer.Option(min=1, help="Which stage, from 1 on.")],
    count: Annotated[int, typer.Option(min=1, max=2**15 - 1, help="How many workers.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Let workers join or leave a stage of a running job, within the limits of its cluster.

    Training goes on while new workers start, and with them from the next step after all of them are ready. In BSP
    losses stay the same. A resumed run begins with the counts of its plan again.
    """
    from heterps.training.run.commands import Scale
    from heterps.training.run.control import ask

    told = ask(run, Scale(stage - 1, count))
    if told.is_error:
        raise ConfigError(told.text)
    if json:
        print_json({"stage": stage, "count": count, "answer": told.text})
    else:
        typer.echo(told.text)
