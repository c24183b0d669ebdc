"""`heterps keys`: the key that lets processes of a job on several machines trust each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import examples, print_json

EXAMPLES = examples(
    "heterps keys create keys/my-job",
)


group = typer.Typer(help="Make the key of a job.", no_args_is_help=True)


@group.command(epilog=EXAMPLES)
def create(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to put job.key; made if it is not there.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Make a new key for a job, in DIR/job.key, which only you can read.

    Servers that listen beyond this machine need one. Every process of the job must have the same file, copied by a way
    that keeps it secret (scp -p): anyone who has it can join the job.
    """
    from heterps.wire.keys import create_keys

    path = create_keys(folder)
    if json:
        print_json({"key": str(path)})
    else:
        typer.echo(f"{path}: new key, readable by you only. Give it to every process of the job.")
