"""`heterps profile`: how long each layer takes on each resource."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from heterps.cli.output import check_folders, examples, print_json, write_file
from heterps.config import Data, Job, Model, Schema, load_job
from heterps.config.launchers import LAUNCHERS
from heterps.errors import ConfigError, DataError
from heterps.report.terminal.consoles import make_console
from heterps.yamlfile import parse, read_text

if TYPE_CHECKING:
    from heterps.profiling.job import UnitsFrom
    from heterps.profiling.profile import Profile

EXAMPLES = examples(
    "heterps profile examples/ctr.yaml --out profile.json",
    "heterps profile --model deepfm --batch-size 4096",
    "heterps profile --model my_package.my_module:make_model --inputs 16,3x32x32",
    "heterps profile --merge cpu.json --merge v100.json --out profile.json",
    note="Next: heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9",
)

WHOLE_SHARE = 0.1
"""Seconds of whole steps, over those of the budget."""


def profile(
    job: Annotated[
        Path | None,
        typer.Argument(metavar="JOB", help="The job file; without one, --model and the columns that it is made for."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A zoo name or package.module:factory, in place of the job's.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples of the profiling batch. [default: the job's, or 4096]")
    ] = None,
    resources: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: cpu (this machine), a device of `heterps prices`, or name=device. "
            "[default: the job's cluster, or cpu,v100]"
        ),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds to spend on timing layers, units and servers, shared among the layers. On top come the start "
            "of processes, reading data for half a second, estimates, at least three runs of each layer, whole steps "
            "for a tenth of it, and as much again for each GPU that is here.",
        ),
    ] = 10.0,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Take a random batch, whatever data there is.")
    ] = False,
    inputs: Annotated[
        str | None,
        typer.Option(
            help="Shapes of one sample of each input, for a model that does not take (dense, slots): 16,3x32x32."
        ),
    ] = None,
    units: Annotated[
        str,
        typer.Option(
            help="What alpha and beta of this machine's cores are fitted from: two processes at once, or parts of the "
            "batch in one (quicker to start, blind to what units take from each other)."
        ),
    ] = "processes",
    launcher: Annotated[
        str | None,
        typer.Option(
            help="Also measure what this launcher, inline or local, costs besides the layers: in short trials of the "
            "job, and once on a machine with an empty model. It takes a minute. [default: local if it is the job's]"
        ),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            help="A profile of the same layers on other resources, to merge into the result; may be given more than "
            "once. Without a job and a model: merge these alone."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the profile goes.")] = Path("profile.json"),
    json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON instead of a table.")] = False,
) -> None:
    """Trace a model into layers and measure each; devices that are not here are estimated, and marked so."""
    from heterps.profiling.profile import ProfiledJob, load_profile

    check_folders(profile=out)
    others = [load_profile(path) for path in merge or ()]
    if job is not None or model is not None:
        chosen = _choose(load_job(job) if job else None, model, batch_size)
        words = [word.strip() for word in resources.split(",")] if resources else None
        without_data = synthetic or job is None or inputs is not None or not _has_data(chosen)
        others.insert(0, _measure(chosen, words, budget, without_data, inputs, _units_from(units)))
        is_here = chosen.has_workers and LAUNCHERS[chosen.launcher].is_measured
        is_asked = is_here and chosen.emulation is None and budget > 0
        if (wanted := launcher or (chosen.launcher if is_asked else None)) is not None:
            is_tried = not without_data and budget > 0
            others[0] = _with_overhead(others[0], wanted, chosen if is_tried else None)
    elif len(others) < 2:
        raise ConfigError(
            "name a job file or --model: heterps profile examples/ctr.yaml, heterps profile --model ctr_dnn; or two "
            "profiles or more to merge: heterps profile --merge cpu.json --merge v100.json."
        )
    result = others[0].merge(*others[1:])
    if job is not None:
        result = result.model_copy(update={"version": 2, "job": ProfiledJob.of(chosen)})
    write_file(out, "profile", result.write, "Choose another place with --out")
    if json:
        print_json(result.model_dump_json(indent=1))
    else:
        _show(result, out, _cluster_file(job))


def _choose(job: Job | None, factory: str | None, batch_size: int | None) -> Job:
    """The job to profile. Another factory on the command line starts with its own default arguments."""
    chosen = job or Job(data=Data(train="no data", columns=_columns(factory)))
    if factory is not None and factory != chosen.model.factory:
        chosen = chosen.model_copy(update={"model": Model(factory=factory)})
    if batch_size is not None:
        chosen = chosen.model_copy(update={"data": chosen.data.model_copy(update={"batch_size": batch_size})})
    return chosen


def _columns(factory: str | None) -> Schema:
    """The columns that a model is profiled with where no job names them."""
    from heterps.model.zoo import COLUMNS

    return COLUMNS.get(factory or "", Schema())


def _has_data(job: Job) -> bool:
    from heterps.data.sources import open_paths

    try:
        open_paths(job.data, job.data.train)
    except DataError as error:
        typer.echo(f"Profiling on a random batch, because there is no data yet: {error}", err=True)
        return False
    return True


def _units_from(word: str) -> UnitsFrom:
    from heterps.profiling.job import UnitsFrom

    for known in get_args(UnitsFrom):
        if word == known:
            chosen: UnitsFrom = known
            return chosen
    raise ConfigError(f"--units must be one of: {', '.join(get_args(UnitsFrom))} (got {word!r}).")


def _measure(
    job: Job, resources: list[str] | None, budget_s: float, synthetic: bool, inputs: str | None, units: UnitsFrom
) -> Profile:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from heterps.data.fit import fit_job
    from heterps.data.split import fit_split
    from heterps.launch.whole_steps import with_whole_steps
    from heterps.model.trace import Layer
    from heterps.profiling.growth import with_growth
    from heterps.profiling.job import profile_job

    columns = (TextColumn("profiling {task.description}"), BarColumn(), MofNCompleteColumn())
    console = make_console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("(starting)", total=None)

        def progress(layer: Layer, num_layers: int) -> None:
            if layer.index == 0 and not console.is_terminal:  # where there is no bar
                console.print(f"profiling {job.model.factory}", markup=False)
            bar.update(task, description=layer.name, completed=layer.index, total=num_layers)

        profile = profile_job(
            job,
            resources,
            synthetic=synthetic,
            inputs=inputs,
            budget_s=budget_s,
            units=units,
            progress=progress,
            warn=lambda text: typer.echo(text, err=True),
        )
        if synthetic or budget_s == 0:
            return profile
        bar.update(task, description="whole steps", completed=len(profile.layers))
        fitted = fit_job(fit_split(job))
        threads = sorted({1, job.num_threads})
        stepped = with_whole_steps(profile, fitted, threads, seconds=budget_s * WHOLE_SHARE)
        bar.update(task, description="growth of tables")
        return with_growth(stepped, fitted)


def _with_overhead(profile: Profile, launcher: str, job: Job | None) -> Profile:
    from heterps.cli.train import EXIT_CODES
    from heterps.launch.overheads import cache_file, with_overhead
    from heterps.planning.trial import TrialStopped

    measured = [name for name, found in LAUNCHERS.items() if found.is_measured]
    if launcher not in measured:
        raise ConfigError(f"--launcher {launcher}: the overhead of {' and '.join(measured)} can be measured here.")
    console = make_console(stderr=True)
    console.print(f"measuring what launcher {launcher} costs; in part kept in {cache_file()}", style="dim")
    try:
        return with_overhead(profile, launcher, job)
    except TrialStopped as stopped:
        raise typer.Exit(EXIT_CODES.get(str(stopped), 1)) from stopped


def _cluster_file(job: Path | None) -> str:
    """The cluster file that the job names, or the name that the documentation gives to one."""

    named = parse(read_text(job, what="job file"), where=str(job), what="job file")[0].get("cluster") if job else None
    return named if isinstance(named, str) else "cluster.yaml"


def _show(profile: Profile, out: Path, cluster: str) -> None:
    import shlex

    from heterps.report.terminal.profile_table import profile_table

    console = make_console()
    console.print(profile_table(profile, console.width))
    command = shlex.join(["heterps", "plan", str(out), cluster, "--throughput", "20000", "--samples", "1e9"])
    console.print(f"Written to {out}. Next:", style="dim", markup=False, soft_wrap=True)
    console.print(command, markup=False, soft_wrap=True)  # on one line, to be pasted
