"""Runs by a plan, on every launcher: the plan, its emulation, and one plan or fleet after another.

plan --> train --> outcome --> summary, report
           |
           +--> [1] somebody asked for another plan, and a checkpoint is made --> train by that one, from there;
           |        by the one before, where a cluster has no place for it
           +--> [2] a worker, server or node is lost (restarts.py) --> train with others, from the last checkpoint
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from heterps.config import Job
from heterps.data.reader import open_reader
from heterps.errors import ConfigError, PeerLost
from heterps.launch.inline import inline_fleet, signals
from heterps.launch.local import local_fleet
from heterps.launch.ray import ray_fleet
from heterps.launch.ray.cluster import KeptRay, NoRay
from heterps.launch.ray.reservations import NoPlace
from heterps.launch.restarts import Restarts, wait_until
from heterps.launch.takeover import find_servers
from heterps.model.build import build_model
from heterps.model.trace import trace_or_whole
from heterps.planning.local import ThisMachine, local_plan, local_prediction
from heterps.planning.plan import Plan
from heterps.planning.prediction import Prediction
from heterps.planning.real import port_bytes_per_s
from heterps.profiling.profile import Profile, ProfiledJob, load_profile
from heterps.profiling.units import num_cores
from heterps.report.run_details import named_profile
from heterps.temporary import owned_folder, temporary_name
from heterps.training.coordinator.coordinator import train_staged
from heterps.training.coordinator.fleet import Fleet
from heterps.training.coordinator.reconfiguration import Replanned
from heterps.training.coordinator.starts import Emulated
from heterps.training.protocol.emulated_units import (
    EmulatedServer,
    memory_bytes,
    server_byte_s,
    stage_seconds,
    unit_port,
)
from heterps.training.protocol.emulation import choose_scale, lacks_devices
from heterps.training.protocol.layout import Layout, job_layout
from heterps.training.protocol.predicted import check_costs, round_seconds
from heterps.training.run.control import Control
from heterps.training.run.folder import PROFILE, Run
from heterps.training.run.observer import Observer, Outcome
from heterps.wire.address import is_local
from heterps.wire.ports import Port

OpenFleet = Callable[..., AbstractContextManager[tuple[Fleet, str]]]


def run_by_plan(
    job: Job,
    run: Run,
    plan: Plan,
    opened: ExitStack,
    *,
    resume: bool,
    observer: Observer,
    shown: Plan | None = None,
    profile: Profile | None = None,
) -> tuple[Job, Plan, Outcome]:
    """Trains `job` by `plan`. The run's plan.json has that one, or the plan to be `shown`.

    The run's profile.json, which other plans are found by while it runs and afterwards, has the profile that the job
    names, or `profile` where it names none.

    Also returns the job and the plan that the run ended with: both differ from the given ones after a replan. The run
    counts as running until `opened` is closed, so that nobody takes it for killed before its summary is written.
    """
    emulated = emulation_of(job, plan)
    if not resume:
        run.create(job)  # only now: a job that cannot run leaves no folder behind
    restarts, lost = Restarts(job), ""  # the words of the loss, if that is why training begins again
    before: tuple[Job, Plan] | None = None  # the job and its plan, if another plan is why
    control = opened.enter_context(Control(run.folder))
    with signals() as received, KeptRay() as kept:
        while True:
            (shown or plan.model_copy(update={"prediction": predict(job, plan)})).write(run.folder / "plan.json")
            if (known := named_profile(job) or profile) is not None:
                run.write(PROFILE, known.model_dump_json(indent=1) + "\n")
            try:
                outcome = train_once(
                    job, run, plan,
                    resume=resume, observer=observer, emulated=emulated, control=control, received=received,
                    kept=kept,
                )  # fmt: skip
            except (PeerLost, NoPlace) as error:
                saved, now = run.saved_samples, time.monotonic()
                if isinstance(error, NoPlace) and before is not None:
                    (job, plan), before = before, None
                    run.resume(job)
                    emulated = emulation_of(job, plan)
                    observer.warned(f"the job goes on by the plan before, {describe(plan)}: {error}")
                elif (
                    start_at := restarts.next_start(
                        error, job, received, now, has_begun=lost != "", has_checkpoint=saved is not None
                    )
                ) is not None:
                    resume, before = True, None  # [2]
                    lost = lost if isinstance(error, NoRay) else str(error)
                    observer.warned(restarts.words(error, saved))
                    wait_until(start_at, received)
                elif (words := restarts.last_words(error, lost, job, has_checkpoint=saved is not None)) is not None:
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
            what = "the job goes on with other servers" if outcome.moves else f"a new plan: {describe(plan)}"
            observer.changed(what)


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
    kept: KeptRay | None = None,
) -> Outcome | Replanned:
    """Trains `job` by `plan` on its launcher. Ctrl-C and SIGTERM end the run after saving everything.

    received  names of the signals that have come, also those from before this call
    kept      the Ray of the run, which this call leaves open
    """
    received = [] if received is None else received
    found = find_servers(job, plan, run) if resume else None
    fleets: dict[str, OpenFleet] = {
        "inline": inline_fleet,
        "local": partial(local_fleet, left=None if found is None else found.head),
        "ray": partial(ray_fleet, kept=kept),
    }
    open_fleet = fleets[job.launcher]
    with ExitStack() as opened:
        if emulated is not None:
            opened.enter_context(owned_folder(Path(emulated.folder)))
        fleet, folder = opened.enter_context(
            open_fleet(job, run, plan, observer=observer, emulated=emulated, received=received)
        )
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
            found=found,
        )


def default_plan(job: Job) -> Plan:
    """One stage on as many CPU cores as the job has threads, and a server; predicted if the job's profile allows it."""
    layers = [layer.name for layer in trace_or_whole(build_model(job.model, job.data.columns, job.seed)).layers]
    return local_plan(
        layers,
        job.cluster,
        load_profile(job.profile) if job.profile is not None else None,
        num_workers=job.num_threads,
        batch_size=job.data.batch_size,
        samples=open_reader(job).num_rows * job.data.epochs,
        here=machines_of(job, job.num_threads),
    )


def machines_of(job: Job, num_workers: int) -> ThisMachine | None:
    """The machines of the job's workers and servers, as far as they are known; None of emulated units, and elsewhere.

    What is on other hosts is known if the cluster says what ports these have. A worker there has a core to itself, and
    none is taken to share the host of a server: where processes are placed is seen only when they run.
    """
    if not job.has_workers or job.emulation is not None:
        return None
    far = job.is_elsewhere or not all(map(is_local, job.servers.addresses if job.servers is not None else ()))
    has_ports = far and any(port_bytes_per_s(job.cluster, name) is not None for name in job.cluster.resources)
    if job.is_elsewhere and not has_ports:
        return None
    return ThisMachine(num_workers if job.is_elsewhere else num_cores(), job.sync.in_rounds, has_ports=has_ports)


def predict(job: Job, plan: Plan) -> Prediction | None:
    """Predict a run of `job` by `plan` as real processes of this machine or of hosts behind ports, or inline.

    Of emulated units, and of hosts whose ports are not known, the plan says what is expected, if it was made for the
    job's policy. None without a profile of all layers on the resources of the plan.
    """
    if not job.has_workers:
        return plan.prediction
    if (here := machines_of(job, sum(stage.count for stage in plan.stages))) is None:
        return plan.prediction if plan.sync == job.sync.label else None
    if job.profile is None:
        return None
    layout = job_layout(job, plan)
    try:
        profile = load_profile(job.profile).at_batch_size(job.data.batch_size)
        check_costs(profile.on(job.cluster), layout)
    except ConfigError:
        return None  # also in trials for a profile that is still to be made
    return local_prediction(profile, job.cluster, plan.stages, layout.num_lanes, here)


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
    layout = job_layout(job, plan)
    num_servers = max(plan.servers.count, 1)
    scale = job.emulation.scale or choose_scale(job, profile, layout, num_servers)
    folder = temporary_name("ports-")

    def port(resource: str, number: int, prefix: str = "") -> Port | None:
        found = unit_port(profile, job.cluster, resource, number)
        return None if found is None else Port(prefix + found[0], found[1], scale, folder)

    def port_of(worker: str, of: Layout) -> Port | None:
        """Units of a resource are numbered over all stages that have some."""
        resource = of.stages[of.stage_of(worker)].resource
        alike = [name for stage in of.stages if stage.resource == resource for name in stage.workers]
        return port(resource, alike.index(worker))

    def server(number: int) -> EmulatedServer:
        resource = job.cluster.server_resource
        said = job.cluster.resources[resource].port_gbps is not None or not job.cluster.sold_alone(resource)
        own = port(resource, number, "server-") if said else None
        return EmulatedServer(server_byte_s(profile), scale, memory_bytes(job.cluster, resource), own)

    stage_seconds(profile, job.cluster, layout)  # what is missing in the profile shows here
    if job.is_elsewhere and any(port_of(worker, layout) for worker in layout.workers):
        raise ConfigError(
            "the ports of emulated machines are kept on one real machine, and ray_address may name several: leave "
            "--address out, so that Ray is started here, or use --launcher local"
        )
    return Emulated(scale, lambda of: stage_seconds(profile, job.cluster, of), port_of, server, folder)


def throughput_in_rounds(job: Job, plan: Plan) -> float | None:
    """Samples a second by `plan` in BSP, where batches wait for each other; the plan's own prediction omits that.

    None with another policy, where the prediction knows the policy, and without a profile for the units of the plan.
    """
    if plan.sync is not None:
        return None
    if not job.has_workers or not job.sync.in_rounds or job.profile is None or not plan.is_predicted:
        return None
    batch_size = job.data.batch_size
    layout = job_layout(job, plan)
    try:
        profile = load_profile(job.profile)
        known, servers = ProfiledJob.of(job), plan.servers.count
        return batch_size / round_seconds(profile, job.cluster, layout, servers, batch_size, known)
    except ConfigError:
        return None
