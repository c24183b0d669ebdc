"""`heterps profile`: how long each layer takes on each resource."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heterps.config import Job, Model, Optimizers, Schema, load_job
from heterps.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from heterps.data.batch import Batch
    from heterps.profiling.profile import Profile

DEFAULT_BATCH_SIZE = 4096
DEFAULT_RESOURCES = "cpu,v100"


def register(app: typer.Typer) -> None:
    app.command(
        name="profile",
        epilog="Example: heterps profile examples/ctr.yaml --out profile.json; then: heterps plan profile.json ...",
    )(profile)


def profile(
    job: Annotated[
        Path | None, typer.Argument(help="The job file; without one, --model and the default columns.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A zoo name or package.module:factory, in place of the job's.", show_default=False),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples of the profiling batch. [default: the job's, or 4096]")
    ] = None,
    resources: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: cpu (this machine), a catalogue device, or name=device. "
            "[default: the job's cluster, or cpu,v100]",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[float, typer.Option(min=0.0, help="Seconds to spend on measuring.")] = 10.0,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Take a random batch, whatever data there is.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the profile goes.")] = Path("profile.json"),
    json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON instead of a table.")] = False,
) -> None:
    """Trace a model into layers and measure each; devices that are not here are estimated, and marked so."""
    loaded = load_job(job) if job else None
    if loaded is None and model is None:
        raise ConfigError(
            "name a job file or --model: heterps profile examples/ctr.yaml, heterps profile --model ctr_dnn."
        )
    chosen = _model(loaded, model)
    words = (resources or _cluster_resources(loaded) or DEFAULT_RESOURCES).split(",")
    result = _measure(loaded, chosen, batch_size, [word.strip() for word in words], budget, synthetic)
    try:
        result.write(out)
    except OSError as error:
        raise StorageError(
            f"{out}: cannot write the profile: {error.strerror}. Choose another place with --out."
        ) from None
    if json:
        typer.echo(result.model_dump_json(indent=1))
    else:
        _show(result, out)


def _model(job: Job | None, factory: str | None) -> Model:
    """The job's model; another factory on the command line starts with its own default arguments."""
    if job is None or (factory is not None and factory != job.model.factory):
        return Model(factory=factory or Model().factory)
    return job.model


def _cluster_resources(job: Job | None) -> str | None:
    """The job's resources; a CPU of any name is a core of this machine."""
    from heterps.profiling.catalogue import CATALOGUE, LOCAL

    if job is None:
        return None
    words = [
        f"{name}={LOCAL}" if resource.device == "cpu" and name not in (LOCAL, *CATALOGUE) else name
        for name, resource in job.cluster.resources.items()
    ]
    return ",".join(words)


def _measure(
    job: Job | None, model: Model, batch_size: int | None, resources: list[str], budget_s: float, synthetic: bool
) -> Profile:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from heterps.model.build import build_model
    from heterps.model.trace import Layer
    from heterps.profiling.profiler import profile

    schema = job.data.columns if job else Schema()
    num_samples = batch_size or (job.data.batch_size if job else DEFAULT_BATCH_SIZE)
    module = build_model(model, schema, job.seed if job else 0)
    batch = _batch(None if synthetic else job, schema, num_samples)
    columns = (TextColumn("profiling {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def progress(layer: Layer, num_layers: int) -> None:
            bar.update(task, description=layer.name, completed=layer.index, total=num_layers)

        return profile(
            module,
            batch,
            resources,
            name=model.factory,
            optimizers=job.optimizers if job else Optimizers(),
            budget_s=budget_s,
            progress=progress,
        )


def _batch(job: Job | None, schema: Schema, num_samples: int) -> Batch:
    """One batch for profiling: a random one of the schema's shape."""
    from heterps.profiling.batches import random_batch

    return random_batch(schema, num_samples, job.seed if job else 0)


def _show(profile: Profile, out: Path) -> None:
    from rich.console import Console

    from heterps.report.profile_table import profile_table

    console = Console(highlight=False)
    console.print(profile_table(profile, console.width))
    console.print(
        f"Written to {out}. Next: heterps plan {out} cluster.yaml --throughput 20000 --samples 1e9", style="dim"
    )
