"""A job from its file to a complete run folder: `train` starts it on the launcher that it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps.catalogue import LOCAL
from heterps.config import Job, Servers, load_job
from heterps.config.launchers import LAUNCHERS
from heterps.data.columns import check_columns
from heterps.data.fit import fit_job, unscaled
from heterps.data.missing import empty_columns
from heterps.data.reader import open_reader, open_test_reader, open_validation_reader
from heterps.data.sources import Dataset, open_paths
from heterps.data.split import fit_split
from heterps.errors import ConfigError, ModelError
from heterps.launch.by_plan import default_plan, predict, run_by_plan, throughput_in_rounds
from heterps.launch.from_python import job_from_python
from heterps.launch.learning import check_learns
from heterps.launch.learning import learn as learn_from
from heterps.launch.whole_steps import with_whole_steps
from heterps.model.build import build_model, imported_script
from heterps.model.named import Given
from heterps.model.trace import trace
from heterps.nn import model_tables
from heterps.planning.inline import cpu_resource, inline_plan, unpredicted_plan
from heterps.planning.plan import Plan, check_plan, load_plan
from heterps.profiling.job import profile_job
from heterps.profiling.profile import Profile, load_profile
from heterps.report.meaning import not_rented, over_fitting
from heterps.report.page.run import render_run
from heterps.report.run_details import read_details, with_quick_frontier
from heterps.report.summary import summarise
from heterps.serving.load import LoadedModel, load
from heterps.training.metrics.metrics import better
from heterps.training.model.objectives import Objectives
from heterps.training.run.control import refuse_if_running
from heterps.training.run.events import EventLog
from heterps.training.run.folder import Run, choose_folder
from heterps.training.run.observer import Observer, Observers
from heterps.training.run.start import check_start
from heterps.training.run.trackers import trackers_of

QUICK_PROFILE_S = 1.0
"""Seconds that a run without a profile spends on making one, so that every run has a prediction."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended: its folder, and what is in its summary.json."""

    folder: Path
    summary: dict[str, Any]

    def load(self, model: Given | None = None) -> LoadedModel:
        """The trained model, to predict with and to ask for vectors: see heterps.load."""
        return load(self.folder, model=model)


def train(
    job: Job | str | Path | None = None,
    folder: str | Path | None = None,
    *,
    model: Given | None = None,
    data: Any = None,
    resume: bool | str | Path = False,
    learn: bool = False,
    observer: Observer | Sequence[Observer] | None = None,
    **fields: Any,
) -> FinishedRun:
    """Train a job, or the job in a file, or `model` on `data`; write the run folder, by default `runs/<name>-<number>`.

    model     a torch.nn.Module (which is copied, and stays as it is), its class, a function that makes one, or a name
    data      a path, a DataFrame of pandas or polars, an Arrow table, a dict of columns, or a torch DataLoader
    resume    go on with the run in `folder`, from its last checkpoint, or from the one that is named
    learn     correct the job's profile by what this run measures, so that the next prediction is better
    observer  is told of steps, lines of metrics, checkpoints and the end; several are a list
    fields    fields of a job, of its `data` and of its `data.columns`, by their names: label, slots, batch_size,
              launcher, optimizers, ...; `test` and `validation` take what `data` takes. `model_args` are the arguments
              of the model's class or function, and `validate` is the job's section `validation`.
    """
    if (script := imported_script()) is not None:
        raise ModelError(
            f"{script} trains while a worker imports it for its model. Put what only the main process should do under "
            '`if __name__ == "__main__":`'
        )
    watch = observer if isinstance(observer, Observer) else Observers(observer or ())
    where = None if folder is None else Path(folder)
    if job is None:
        with job_from_python(model, data, where, fields) as made:
            return _train(made, where, resume=resume, learns=learn, observer=watch)
    if model is not None or data is not None or fields:
        named = [name for name, value in (("model", model), ("data", data)) if value is not None]
        raise ConfigError(f"a job has everything already, so leave out {', '.join([*named, *fields])}, or the job.")
    if not isinstance(job, (Job, str, Path)):
        raise ConfigError(
            f"a job is a heterps.Job or the path of a job file; got a {type(job).__name__}. A model and its data are "
            "given as heterps.train(model=..., data=...)."
        )
    return _train(job if isinstance(job, Job) else load_job(job), where, resume=resume, learns=learn, observer=watch)


def _train(
    job: Job, folder: Path | None, *, resume: bool | str | Path, learns: bool, observer: Observer
) -> FinishedRun:
    _refuse_unhonoured(job)
    if learns:
        check_learns(job)
    given = _given_plan(job)
    source, resume = (None, resume) if isinstance(resume, bool) else (resume, True)
    run = Run(folder if folder is not None else choose_folder(job, resume=resume))
    refuse_if_running(run.folder)
    observer = Observers((observer, *trackers_of(job, run.folder)))
    if not resume:
        check_start(job)
    else:
        if source is not None:
            run.go_back_to(source)
        _tell_replanned(job, run, observer)
        job = run.with_fitted(job)
        run.resume(job)
        if (damage := run.mend_metrics()) is not None:
            observer.warned(damage)
    job = fit_split(job)
    num_samples = _num_samples(job)
    job = fit_job(job, observer.waiting)
    dataset = open_paths(job.data, job.data.train)
    noticed = (unscaled(dataset, job.data.columns), empty_columns(dataset, job.data.columns))
    warnings = [sentence for sentence in noticed if sentence]
    for warning in warnings:
        observer.warned(warning)
    shown = profile = None
    if not job.has_workers:
        profile = _inline_profile(job, observer)
        plan, shown = _inline_plan(job, profile, num_samples), given
        if shown is not None:
            observer.warned(f"{not_rented(shown)}.")
    else:
        plan = given or default_plan(job)
    observer = Observers((observer, EventLog(run)))
    with _telling(observer), ExitStack() as opened:
        job, plan, outcome = run_by_plan(
            job, run, plan, opened, resume=resume, observer=observer, shown=shown, profile=profile
        )
        predicted = predict(job, plan)
        is_rented = job.plan is None or not plan.is_predicted or predicted is None or job.is_elsewhere
        promised = shown or (None if is_rented else plan)
        in_rounds = throughput_in_rounds(job, plan) if predicted is None else None
        summary = summarise(job, plan, outcome, predicted, promised, in_rounds)
        warnings += [*outcome.doubts, *filter(None, [over_fitting(summary)])]
        summary |= {"warnings": warnings} if warnings else {}
        summary |= {"start": run.start} if run.start is not None else {}
        summary |= {"learned": learn_from(job, plan, summary)} if learns else {}
        run.write_json("summary.json", summary)
    details = with_quick_frontier(read_details(run, job), job, shown or plan)
    run.write("report.html", render_run(job, shown or plan, summary, run.metrics(), details))
    observer.finished(summary)
    return FinishedRun(run.folder, summary)


@contextmanager
def _telling(observer: Observer) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        observer.failed(error)
        raise


def _refuse_unhonoured(job: Job) -> None:
    """Raises ConfigError where the job's launcher cannot do what a field of the job asks for."""
    if not job.has_workers and job.emulation is not None:
        raise ConfigError(
            "emulation is of the units of a plan, which the inline launcher has not: use --launcher local, or leave it "
            "out"
        )
    if job.servers is not None and job.servers.replicas:
        _check_replicas(job)
    if job.servers is not None and job.servers.wait_s and (lacking := _no_wait(job)) is not None:
        raise ConfigError(f"servers.wait_s: {lacking}. They wait for nobody: leave it out, or say 0")
    if (metric := job.validation.metric) is not None:
        known = Objectives(job.data.columns).metrics().names()
        if metric not in known:
            raise ConfigError(f"validation.metric: there is no {metric!r} for these labels, only {', '.join(known)}.")
        better(metric, 0.0, 0.0)  # refuses those that have no better
    if job.optimizers.groups or job.optimizers.freeze:  # their patterns must match names of the model
        model_tables(build_model(job.model, job.data.columns, job.seed), job.optimizers)


def _no_wait(job: Job) -> str | None:
    """Why servers of the job cannot wait for another coordinator; None where they can."""
    servers = job.servers or Servers()
    if servers.addresses:
        return "servers at addresses do not end with the run"
    if not LAUNCHERS[job.launcher].keeps_servers:
        return f"servers of the {job.launcher} launcher end with the process of the run"
    if servers.channel == "memory" or job.workers.channel == "memory":
        return "servers are threads of the process of the run (channel: memory)"
    return None


def _check_replicas(job: Job) -> None:
    """Raises ConfigError where servers of the job cannot have mirrors."""
    if not job.has_workers:
        raise ConfigError(
            "servers.replicas: the inline launcher starts no mirrors of servers: use --launcher local, or leave it out"
        )
    if job.workers.channel == "memory":
        raise ConfigError(
            "servers.replicas: with workers.channel memory servers are threads, which all end with this process: use "
            "workers.channel ipc, or leave replicas out"
        )
    if job.emulation is not None:
        raise ConfigError("servers.replicas: mirrors of emulated servers are not emulated: leave one of the two out")


def _tell_replanned(job: Job, run: Run, observer: Observer) -> None:
    """Warns that a resumed run follows the plan of the given job, although the run itself was replanned to another."""
    if not (run.folder / "job.yaml").is_file():
        return
    before = load_job(run.folder / "job.yaml").plan
    if before is not None and Path(before).parent == run.folder and before != job.plan:
        observer.warned(
            f"{run.folder} was replanned, to {before}, and goes on by the plan of the job that was given. To keep to "
            f"{before}, resume it with {run.folder / 'job.yaml'}."
        )


def _given_plan(job: Job) -> Plan | None:
    """The plan that the job names, checked against its model and cluster."""
    if job.plan is None:
        return None
    plan = load_plan(job.plan)
    try:
        layers = [layer.name for layer in trace(build_model(job.model, job.data.columns, job.seed)).layers]
    except ModelError as error:
        raise ConfigError(f"{job.plan}: a plan is of the layers of a model. Train this one without. {error}") from None
    check_plan(plan, layers, job.data.batch_size, job.cluster, where=job.plan)
    return plan


def _num_samples(job: Job) -> int:
    """The number of samples of all epochs. Raises DataError where the data to train or evaluate on is visibly wrong."""
    reader = open_reader(job)
    others = [open_test_reader(job)] if job.data.test is not None else []
    others += [open_validation_reader(job)] if job.data.validation is not None else []
    files = dict.fromkeys(file for one in (reader, *others) for file in one.dataset.files)
    check_columns(Dataset(tuple(files)), job.data.columns)  # an id must have the same key in all of them
    return reader.num_rows * job.data.epochs


def _inline_profile(job: Job, observer: Observer) -> Profile | None:
    """The job's profile, or one that is made now; None where its model cannot be profiled."""
    if job.servers is not None:
        observer.warned(
            "the prediction is of this job with its tables in this process: servers take cores and time of their own."
        )
    if job.profile is not None:
        return load_profile(job.profile).at_batch_size(job.data.batch_size)
    model = build_model(job.model, job.data.columns, job.seed)
    try:
        trace(model)
    except ModelError as error:
        observer.warned(f"there is no prediction for this run, because its model cannot be profiled. {error}")
        return None
    cpu = f"{cpu_resource(job.cluster)}={LOCAL}"
    profile = profile_job(job, [cpu], budget_s=QUICK_PROFILE_S, units="parts")  # processes take long to start
    if QUICK_PROFILE_S > 0:
        profile = with_whole_steps(profile, job, [job.num_threads], seconds=QUICK_PROFILE_S)
    return profile


def _inline_plan(job: Job, profile: Profile | None, num_samples: int) -> Plan:
    """The plan of an inline run: what this machine is predicted to do with the job."""
    if profile is None:
        return unpredicted_plan(job.cluster, num_cores=job.num_threads)
    return inline_plan(profile, job.cluster, num_cores=job.num_threads, samples=num_samples)
