"""`heterps train`: run a job."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from heterps.cli.output import examples, print_json
from heterps.config import Job, load_job
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console
from heterps.yamlfile import validate

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}


EXAMPLES = examples(
    "heterps train examples/ctr.yaml",
    "heterps train examples/ctr.yaml --run runs/mine --resume",
    "heterps train examples/ctr.yaml --run runs/mine --resume --from 1234",
    "heterps train examples/ctr.yaml --plan plan.json",
    "heterps train examples/ctr.yaml --launcher local --workers 2 --sync dssp:3:12",
    "heterps train examples/ctr.yaml --profile profile.json --learn",
    "heterps train examples/ctr.yaml --launcher local --metrics 127.0.0.1:9100",
    "heterps train examples/ctr.yaml --launcher local --profile profile.json --plan plan.json --emulate",
)


def train(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file.")],
    run: Annotated[Path | None, typer.Option(help="Run folder; by default runs/<job name>-<number>.")] = None,
    launcher: Annotated[str | None, typer.Option(help="Where processes run; overrides the job's.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster of launcher ray: auto or HOST:PORT; overrides the job's ray_address."),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan, made by `heterps plan`; overrides the job's.")] = None,
    profile: Annotated[
        Path | None, typer.Option(help="The profile, made by `heterps profile`; overrides the job's.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers of a job without a plan, with a launcher that has any; overrides threads."),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            min=0, help="How often to go on by itself when a worker or server is lost; overrides workers.restarts."
        ),
    ] = None,
    sync: Annotated[
        str | None, typer.Option(help="When a worker may go on: bsp, asp, ssp:3, dssp:3:12; overrides the job's.")
    ] = None,
    emulate: Annotated[
        bool,
        typer.Option("--emulate", help="Emulate the units of the plan here, by the profile. Figures are then of them."),
    ] = False,
    learn: Annotated[
        bool,
        typer.Option("--learn", help="Correct the profile by what this run measures, so that the next plan is better."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's newest checkpoint.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="CHECKPOINT", help="With --resume: go back to this checkpoint of the run."),
    ] = None,
    report_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER",
            help="Send metrics to tensorboard (events in RUN/tensorboard) or mlflow, too; may be given twice; "
            "overrides the job's.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Tell Prometheus about the job and its servers at http://HOST:PORT/metrics; port 0 takes a free one.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token that Prometheus must send, needed beyond loopback; or set HETERPS_TOKEN.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
) -> int:
    """Train a job and write its run folder: job, plan, metrics, checkpoints, summary and report.

    Ctrl-C and SIGTERM end the run after the running step with everything saved; --resume goes on from there.
    """
    from heterps.launch import train as launch
    from heterps.launch.run_metrics import run_facts
    from heterps.report.prometheus import exposition
    from heterps.report.terminal.run_summary import print_summary
    from heterps.report.terminal.training_progress import TrainingProgress
    from heterps.serving.metrics_socket import open_metrics
    from heterps.training.run.folder import choose_folder

    loaded = load_job(job)
    overriding: dict[str, tuple[str, Any]] = {
        "--plan": ("plan", str(plan) if plan is not None else None),
        "--profile": ("profile", str(profile) if profile is not None else None),
        "--launcher": ("launcher", launcher),
        "--address": ("ray_address", address),
        "--sync": ("sync", sync),
        "--workers": ("threads", workers),
        "--report-to": ("report_to", report_to or None),
        "--emulate": ("emulation", {} if emulate and loaded.emulation is None else None),
        "--restarts": (
            "workers",
            {**loaded.workers.model_dump(), "restarts": restarts} if restarts is not None else None,
        ),
    }
    for option, (field, value) in overriding.items():
        if value is not None:
            try:
                loaded = validate({**loaded.model_dump(), field: value}, Job, where=option)
            except ConfigError as error:
                raise ConfigError(str(error).replace(f"{option}: {field}: ", f"{option}: ")) from None
    if workers is not None and loaded.plan is not None:
        raise ConfigError(
            f"--workers: the plan {loaded.plan} says how many workers there are. Leave out one of the two."
        )
    if workers is not None and not loaded.has_workers:
        raise ConfigError(
            "--workers: the inline launcher has no workers. Add --launcher local, or set threads in the job."
        )
    if restarts and not loaded.has_workers:
        raise ConfigError(
            "--restarts: the inline launcher has no workers to lose. Add --launcher local, or leave it out."
        )
    if source is not None and not resume:
        raise ConfigError(
            f"--from {source}: it says where a run goes on, so add --resume. A new run starts from another model by "
            "`start` in the job."
        )
    console = make_console(stderr=json)
    with ExitStack() as opened:
        if (socket := open_metrics(metrics, token_file)) is not None:
            folder = run = run or choose_folder(loaded, resume=resume)
            opened.enter_context(socket.tell(lambda: exposition([run_facts(folder.resolve().name, folder)])))
            console.print(f"metrics at {socket.url}", highlight=False, soft_wrap=True)
        progress = opened.enter_context(TrainingProgress(console, has_stages=loaded.has_workers))
        finished = launch(loaded, run, resume=source or resume, learn=learn, observer=progress)
    if json:
        print_json(finished.summary, indent=1)
    else:
        print_summary(console, finished.folder, finished.summary)
    return EXIT_CODES.get(finished.summary["status"].rpartition(" ")[2], 0)
