"""Runs by a plan, on the launchers `local` and `ray`: the plan, its emulation, and one plan after another.

plan --> train --> outcome --> summary, report
           |
           +--> somebody asked for another plan, and a checkpoint is made --> train by that one, from there
"""

from __future__ import annotations

from pathlib import Path

from heterps.config import BSP, Job, load_cluster
from heterps.errors import ConfigError
from heterps.launch.local import train_local
from heterps.launch.ray import train_ray
from heterps.model.build import build_model
from heterps.model.trace import trace
from heterps.planning.inline import cpu_resource
from heterps.planning.plan import Plan, Servers, Stage, check_plan, load_plan
from heterps.profiling.profile import load_profile
from heterps.training.coordinator import Emulated
from heterps.training.emulation import StagePace, choose_scale, must_emulate, server_seconds, stage_seconds
from heterps.training.layout import Layout, make_layout
from heterps.training.loop import Observer, Outcome
from heterps.training.messages import Replan
from heterps.training.run import Run
from heterps.training.stage_tables import stage_tables


def run_by_plan(job: Job, run: Run, given: Plan | None, *, resume: bool, observer: Observer) -> tuple[Plan, Outcome]:
    """Train `job` by the `given` plan, or by the plan that a job without one has; and the plan that it ended by."""
    plan = given or default_plan(job)
    emulated = emulation_of(job, plan)
    if not resume:
        run.create(job)  # only now: a job that cannot run leaves no folder behind
    while True:
        run.write("plan.json", plan.model_dump_json(indent=1, exclude_none=True) + "\n")
        train_there = train_ray if job.launcher == "ray" else train_local
        outcome = train_there(job, run, plan, resume=resume, observer=observer, emulated=emulated)
        if isinstance(outcome, Outcome):
            return plan, outcome
        job, plan = _replanned(job, run, outcome)
        emulated, resume = emulation_of(job, plan), True
        observer.changed(f"a new plan: {describe(plan)}")


def default_plan(job: Job) -> Plan:
    """One stage on as many CPU cores as the job has threads, and a server."""
    layers = trace(build_model(job.model, job.data.columns, job.seed)).layers
    return Plan(
        method="local",
        stages=(Stage(first=0, last=len(layers) - 1, resource=cpu_resource(job.cluster), count=job.num_threads),),
        servers=Servers(resource=job.cluster.server_resource, count=1),
        throughput=0.0,
        hours=0.0,
        usd=0.0,
        bottleneck="not predicted",
        batch_size=job.data.batch_size,
        layers=tuple(layer.name for layer in layers),
    )


def describe(plan: Plan) -> str:
    return " + ".join(f"{stage.count} {stage.resource}" for stage in plan.stages)


def emulation_of(job: Job, plan: Plan) -> Emulated | None:
    """How the units of `plan` are emulated, if the job asks for it. ConfigError where it should ask and does not."""
    if job.emulation is None:
        is_elsewhere = job.launcher == "ray" and job.ray_address is not None  # devices are those of its nodes
        if not is_elsewhere and (missing := must_emulate(plan, job.cluster)):
            raise ConfigError(
                f"the plan runs on {', '.join(missing)}, and this machine has no such device. Emulate it with "
                "--emulate (or `emulation: {}` in the job), or plan for what is here"
            )
        return None
    if job.profile is None:
        raise ConfigError(
            "emulation goes by the times of a profile: make one with `heterps profile` for all resources of the plan, "
            "and name it in the job as `profile`"
        )
    profile = load_profile(job.profile)
    batch_size = job.data.batch_size
    in_rounds = isinstance(job.sync, BSP)
    layout = make_layout(plan, in_rounds=in_rounds, batch_size=batch_size, num_lanes=job.workers.lanes)
    num_servers = max(plan.servers.count, 1)
    scale = job.emulation.scale or choose_scale(job, profile, layout, num_servers)

    def paces(of: Layout) -> list[StagePace]:
        return stage_seconds(profile, job.cluster, of, batch_size)

    paces(layout)  # what is missing in the profile shows here
    pushes = _pushes_a_batch(job, layout, in_rounds)
    batch_s = server_seconds(profile, num_servers, batch_size)
    pace = {"batch_s": batch_s, "pushes_a_batch": pushes, "scale": scale} if pushes and batch_s else None
    return Emulated(scale, paces, pace)


def _pushes_a_batch(job: Job, layout: Layout, in_rounds: bool) -> int:
    """Of all workers to all tables on servers."""
    model = build_model(job.model, job.data.columns, job.seed)
    tables = stage_tables(job, model, trace(model), [stage.first for stage in layout.stages])
    served = tables.on_servers(job.workers.dense == "servers")
    names = [spec.name for spec in served.sparse] + [spec.name for spec in served.dense]
    return sum(len(layout.stages[s].workers) if in_rounds else 1 for name in names for s in tables.stages[name])


def _replanned(job: Job, run: Run, replan: Replan) -> tuple[Job, Plan]:
    """The job with its new cluster, and the new plan."""
    plan = load_plan(replan.plan)
    if replan.cluster is not None:
        job = job.model_copy(update={"cluster": load_cluster(replan.cluster)})
    layers = [layer.name for layer in trace(build_model(job.model, job.data.columns, job.seed)).layers]
    check_plan(plan, layers, job.data.batch_size, job.cluster, where=replan.plan)
    job = job.model_copy(update={"plan": str(Path(replan.plan))})
    run.resume(job)
    return job, plan
