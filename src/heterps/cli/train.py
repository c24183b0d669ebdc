"""`heterps train`: run a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: heterps train examples/ctr.yaml  |  heterps train examples/ctr.yaml --run runs/mine --resume"
        "  |  heterps train examples/ctr.yaml --plan plan.json"
    )(train)


def train(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file.", show_default=False)],
    run: Annotated[Path | None, typer.Option(help="Run folder; by default runs/<job name>-<number>.")] = None,
    launcher: Annotated[str | None, typer.Option(help="Where processes run; overrides the job's.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster of launcher ray: auto or HOST:PORT; overrides the job's ray_address."),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan, made by `heterps plan`; overrides the job's.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's newest checkpoint.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
) -> int:
    """Train a job and write its run folder: job, plan, metrics, checkpoints, summary and report.

    Ctrl-C and SIGTERM end the run after the running step with everything saved; --resume goes on from there.
    """
    from heterps.config import Job, load_job
    from heterps.launch import train as launch
    from heterps.report.consoles import make_console
    from heterps.report.progress import TrainingProgress
    from heterps.report.run_summary import print_summary
    from heterps.yamlfile import validate

    loaded = load_job(job)
    if plan is not None:
        loaded = validate({**loaded.model_dump(), "plan": str(plan)}, Job, where="--plan")
    if launcher is not None:
        loaded = validate({**loaded.model_dump(), "launcher": launcher}, Job, where="--launcher")
    if address is not None:
        loaded = validate({**loaded.model_dump(), "ray_address": address}, Job, where="--address")
    console = make_console(stderr=json)
    with TrainingProgress(console) as progress:
        finished = launch(loaded, run, resume=resume, observer=progress)
    if json:
        typer.echo(_as_json(finished.summary))
    else:
        print_summary(console, finished.folder, finished.summary)
    return EXIT_CODES.get(finished.summary["status"].rpartition(" ")[2], 0)


def _as_json(summary: dict[str, Any]) -> str:
    import json

    return json.dumps(summary, indent=1)
