"""`heterps config`: look at a job file as heterps understands it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.output import print_json
from heterps.config import load_job
from heterps.yamlfile import dump_yaml

group = typer.Typer(help="Check and show job files.", no_args_is_help=True)


@group.command(epilog="Example: heterps config show examples/ctr.yaml")
def show(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Print the job with every field, defaults included; an error names the file, the line and the field."""
    loaded = load_job(job)
    print_json(loaded.model_dump_json(indent=2) if json else dump_yaml(loaded).rstrip())
