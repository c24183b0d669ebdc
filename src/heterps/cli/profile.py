"""`heterps profile`: how long each layer takes on each resource."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heterps.config import Data, Job, Model, Schema, load_job
from heterps.errors import ConfigError, DataError, StorageError

if TYPE_CHECKING:
    from heterps.profiling.profile import Profile


def register(app: typer.Typer) -> None:
    app.command(
        name="profile",
        epilog="Example: heterps profile examples/ctr.yaml --out profile.json; then: heterps plan profile.json ...",
    )(profile)


def profile(
    job: Annotated[
        Path | None, typer.Argument(help="The job file; without one, --model and the columns that it is made for.")
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
    if job is None and model is None:
        raise ConfigError(
            "name a job file or --model: heterps profile examples/ctr.yaml, heterps profile --model ctr_dnn."
        )
    chosen = _choose(load_job(job) if job else None, model, batch_size)
    words = [word.strip() for word in resources.split(",")] if resources else None
    result = _measure(chosen, words, budget, synthetic or job is None or not _has_data(chosen))
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


def _choose(job: Job | None, factory: str | None, batch_size: int | None) -> Job:
    """The job to profile. Another factory on the command line starts with its own default arguments."""
    chosen = job or Job(data=Data(train="no data", columns=_columns(factory)))
    if factory is not None and factory != chosen.model.factory:
        chosen = chosen.model_copy(update={"model": Model(factory=factory)})
    if batch_size is not None:
        chosen = chosen.model_copy(update={"data": chosen.data.model_copy(update={"batch_size": batch_size})})
    return chosen


def _columns(factory: str | None) -> Schema:
    """What a model is profiled with where no job says which columns there are."""
    from heterps.model.zoo import COLUMNS

    return COLUMNS.get(factory or "", Schema())


def _has_data(job: Job) -> bool:
    from heterps.data.sources import open_dataset

    try:
        open_dataset(job.data.train)
    except DataError as error:
        typer.echo(f"Profiling on a random batch, because there is no data yet: {error}", err=True)
        return False
    return True


def _measure(job: Job, resources: list[str] | None, budget_s: float, synthetic: bool) -> Profile:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from heterps.model.trace import Layer
    from heterps.profiling.job import profile_job

    columns = (TextColumn("profiling {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def progress(layer: Layer, num_layers: int) -> None:
            bar.update(task, description=layer.name, completed=layer.index, total=num_layers)

        return profile_job(job, resources, synthetic=synthetic, budget_s=budget_s, progress=progress)


def _show(profile: Profile, out: Path) -> None:
    from rich.console import Console

    from heterps.report.profile_table import profile_table

    console = Console(highlight=False)
    console.print(profile_table(profile, console.width))
    console.print(
        f"Written to {out}. Next: heterps plan {out} cluster.yaml --throughput 20000 --samples 1e9", style="dim"
    )
