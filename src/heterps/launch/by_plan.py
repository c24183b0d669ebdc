"""Runs by a plan, on every launcher: the plan, its emulation, and one plan or fleet after another.

plan --> train --> outcome --> summary, report
           |
           +--> [1] somebody asked for another plan, and a checkpoint is made --> train by that one, from there;
           |        by the one before, where a cluster has no place for it
           +--> [2] a worker, server or node is lost (restarts.py) --> train with others, from the last checkpoint
"""

from __future__ import annotations

from heterps.checkpoint import saved_samples
from heterps.config import Job
from heterps.data.reader import open_reader
from heterps.errors import ConfigError, PeerLost
from heterps.launch.inline import inline_fleet, signals
from heterps.launch.local import local_fleet
from heterps.launch.ray import ray_fleet
from heterps.launch.ray.reservations import NoPlace
from heterps.launch.restarts import last_words, may_restart, restart_words
from heterps.model.build import build_model
from heterps.model.trace import trace
from heterps.planning.local import local_plan
from heterps.planning.plan import Plan
from heterps.profiling.profile import load_profile
from heterps.training.coordinator.coordinator import Emulated, train_staged
from heterps.training.coordinator.reconfiguration import Replanned
from heterps.training.protocol.emulation import StagePace, choose_scale, lacks_devices, stage_seconds
from heterps.training.protocol.layout import Layout, job_layout
from heterps.training.protocol.predicted import round_seconds, server_seconds
from heterps.training.protocol.stage_tables import stage_tables
from heterps.training.run.control import Control
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer, Outcome


def run_by_plan(
    job: Job, run: Run, plan: Plan, *, resume: bool, observer: Observer, shown: Plan | None = None
) -> tuple[Job, Plan, Outcome]:
    """Trains `job` by `plan`. The run's plan.json has that one, or the plan to be `shown`.

    Also returns the job and the plan that the run ended with: both differ from the given ones after a replan.
    """
    emulated = emulation_of(job, plan)
    if not resume:
        run.create(job)  # only now: a job that cannot run leaves no folder behind
    num_restarts, lost = 0, ""  # the words of the loss, if that is why training begins again
    before: tuple[Job, Plan] | None = None  # the job and its plan, if another plan is why
    with Control(run.folder) as control, signals() as received:
        while True:
            run.write("plan.json", (shown or plan).model_dump_json(indent=1, exclude_none=True) + "\n")
            try:
                outcome = train_once(
                    job, run, plan,
                    resume=resume, observer=observer, emulated=emulated, control=control, received=received,
                )  # fmt: skip
            except (PeerLost, NoPlace) as error:
                if isinstance(error, NoPlace) and before is not None:
                    (job, plan), before = before, None
                    run.resume(job)
                    emulated = emulation_of(job, plan)
                    observer.warned(f"the job goes on by the plan before, {describe(plan)}: {error}")
                elif may_restart(error, job, num_restarts, received):
                    num_restarts, resume, lost, before = num_restarts + 1, True, str(error), None  # [2]
                    observer.warned(restart_words(error, saved_samples(run.checkpoints), num_restarts, job))
                elif (words := last_words(error, lost, job, num_restarts)) is not None:
                    raise PeerLost(words) from error
                else:
                    raise
                continue
            if isinstance(outcome, Outcome):
                return job, plan, outcome
            before, lost = (job, plan), ""
            job, plan = outcome.job, outcome.plan  # [1]
            run.resume(job)
            emulated, resume = emulation_of(job, plan), True
            observer.changed(f"a new plan: {describe(plan)}")


def train_once(
    job: Job,
    run: Run,
    plan: Plan,
    *,
    resume: bool,
    observer: Observer,
    emulated: Emulated | None = None,
    control: Control | None = None,
    received: list[str] | None = None,
) -> Outcome | Replanned:
    """Trains `job` by `plan` on its launcher. Ctrl-C and SIGTERM end the run after saving everything.

    received  names of the signals that have come, also those from before this call
    """
    received = [] if received is None else received
    open_fleet = {"inline": inline_fleet, "local": local_fleet, "ray": ray_fleet}[job.launcher]
    with open_fleet(job, run, plan, observer=observer, emulated=emulated, received=received) as (fleet, folder):
        return train_staged(
            job,
            run,
            plan,
            fleet,
            resume=resume,
            observer=observer,
            stop=lambda: received[0] if received else None,
            emulated=emulated,
            folder=folder,
            control=control,
        )


def default_plan(job: Job) -> Plan:
    """One stage on as many CPU cores as the job has threads, and a server; predicted if the job's profile allows it."""
    layers = [layer.name for layer in trace(build_model(job.model, job.data.columns, job.seed)).layers]
    return local_plan(
        layers,
        job.cluster,
        load_profile(job.profile) if job.profile is not None else None,
        num_workers=job.num_threads,
        batch_size=job.data.batch_size,
        samples=open_reader(job).num_rows * job.data.epochs,
    )


def describe(plan: Plan) -> str:
    return " + ".join(f"{stage.count} {stage.resource}" for stage in plan.stages)


def emulation_of(job: Job, plan: Plan) -> Emulated | None:
    """How the units of `plan` are emulated, if the job asks for it. Raises ConfigError where emulation is needed."""
    if missing := lacks_devices(job, (stage.resource for stage in plan.stages)):
        raise ConfigError(
            f"the plan runs on {', '.join(missing)}, and this machine has no such device. Emulate it with --emulate "
            "(or `emulation: {}` in the job), or plan for what is here"
        )
    if job.emulation is None:
        return None
    if job.profile is None:
        raise ConfigError(
            "emulation goes by the times of a profile: make one with `heterps profile` for all resources of the plan, "
            "and name it with --profile, or in the job as `profile`"
        )
    profile = load_profile(job.profile)
    batch_size = job.data.batch_size
    layout = job_layout(job, plan)
    num_servers = max(plan.servers.count, 1)
    scale = job.emulation.scale or choose_scale(job, profile, layout, num_servers)

    def paces(of: Layout) -> list[StagePace]:
        return stage_seconds(profile, job.cluster, of, batch_size)

    paces(layout)  # what is missing in the profile shows here
    updates = _updates_a_batch(job, layout)
    batch_s = server_seconds(profile, num_servers, batch_size)
    pace = {"batch_s": batch_s, "updates_a_batch": updates, "scale": scale} if updates and batch_s else None
    return Emulated(scale, paces, pace)


def throughput_in_rounds(job: Job, plan: Plan) -> float | None:
    """Samples a second by `plan` in BSP, where batches wait for each other; the plan's own prediction omits that.

    None with another policy, and where the job has no profile for the units of the plan.
    """
    if job.launcher == "inline" or not job.sync.in_rounds or job.profile is None or not plan.is_predicted:
        return None
    batch_size = job.data.batch_size
    layout = job_layout(job, plan)
    try:
        profile = load_profile(job.profile)
        return batch_size / round_seconds(profile, job.cluster, layout, plan.servers.count, batch_size)
    except ConfigError:
        return None


def _updates_a_batch(job: Job, layout: Layout) -> int:
    """Number of updates that one batch makes, summed over all tables on servers."""
    model = build_model(job.model, job.data.columns, job.seed)
    tables = stage_tables(job, model, trace(model), [stage.first for stage in layout.stages])
    served = tables.on_servers(job.workers.dense == "servers")
    names = [spec.name for spec in served.sparse] + [spec.name for spec in served.dense]
    return sum(1 if layout.in_rounds else len(tables.stages[name]) for name in names)
