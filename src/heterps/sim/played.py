"""Virtual runs by the engine of real ones: a scenario's workers as workers of a simulated job (see job.py).

    scenario   w0 1.0 s   w1 2.3 s        a stage of two workers, a lane each, that take so long for a whole batch
    bsp        they divide each batch, equally or as fitted to their speeds, and a part takes a part of the seconds
    others     every worker takes whole batches
    joins      the stage is scaled up; a worker that dies is replaced by one like it

The job means what it means to `heterps train`. What no real run does, such as gradients that are damped, compensated,
summed or dropped, is played by the policy simulator instead (see virtual.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from heterps.config import Checkpoint, Job
from heterps.config.workers import Workers
from heterps.data.reader import open_reader
from heterps.model import build_model
from heterps.planning.inline import cpu_resource
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.sim.course import Course, Curve, Point, VirtualRun, expected_samples, read_test
from heterps.sim.job import SimulatedJob
from heterps.sim.result import SimResult, WorkerResult
from heterps.sim.scenario import ENDLESS, Scenario
from heterps.sim.speeds import Speed
from heterps.sim.variants import Variant
from heterps.sim.worker import Doing
from heterps.threads import torch_threads
from heterps.training.coordinator.lane_flow import LaneFlow
from heterps.training.coordinator.reconfiguration import START_S
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.buffers import model_buffers
from heterps.training.model.objectives import Objectives, is_mean_over_samples
from heterps.training.protocol.layout import worker_name
from heterps.training.run.observer import Observer

NEVER_S = 1e12
"""No simulated worker is silent for so long."""


def why_not_as_job(job: Job, scenario: Scenario, variants: Sequence[Variant]) -> str:
    """Why the engine of real runs cannot play all of these variants, so that one comparison is by one simulator.

    It is a clause that can follow "because"; empty where it can.
    """
    if others := [variant.label for variant in variants if not variant.can_train]:
        return f"`heterps train` cannot run {', '.join(others)}"
    if scenario.iterations not in (None, ENDLESS):
        return f"workers leave after {scenario.iterations:,} iterations"
    if scenario.deaths and scenario.replaced_s is None:
        return "workers that die are gone for good (replaced_s in the scenario is when they are back)"
    if (scenario.replaced_s or 0.0) > START_S:
        return f"workers are replaced after more than {START_S:g} s, for which no real run waits"
    model = build_model(job.model, job.data.columns, job.seed)
    if scenario.deaths and model_buffers(model):
        return "the layers of the model keep statistics, which are lost with a worker that dies"
    is_divided = len(scenario.seconds) > 1 and any(variant.by_rounds for variant in variants)
    if is_divided and not is_mean_over_samples(model):
        return "the loss of the model is of whole batches, which a round cannot divide"
    return ""


def train_simulated(
    job: Job, scenario: Scenario, variant: Variant, course: Course, on_point: Callable[[Point], None]
) -> VirtualRun:
    """Train `job` with the workers of a scenario, by the same code that trains with real ones."""
    played = _job_of(job, scenario, variant, course)
    num_rows = open_reader(played).num_rows * played.data.epochs
    batch_size = played.data.batch_size
    most = expected_samples(scenario, batch_size, num_rows)
    names = {worker_name(0, i): name for i, name in enumerate(scenario.seconds)}
    speeds = {worker: Speed(name, scenario.seconds[name], scenario) for worker, name in names.items()}
    with torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(scenario.seed)
        test = read_test(played)
        curve = Curve(max(most // course.points, 1), lambda: simulated.evaluate(test), on_point)
        watch = _CurveWatch(curve)
        simulated = SimulatedJob(
            played,
            _plan_of(played, len(scenario.workers)),
            lambda worker, turn, now: speeds[worker].finish(now, turn.here / batch_size),
            observer=watch,
            latency_s=scenario.latency_s,
            server_s=scenario.server_s,
            start_s=scenario.replaced_s or 0.0,
            seed=scenario.seed,
        )
        _foresee(simulated, scenario)
        try:
            simulated.run(float("inf") if scenario.horizon_s is None else scenario.horizon_s)
            curve.finish(watch.now_s, watch.samples, watch.updates)
            sim = _result(simulated, scenario, variant)
        finally:
            simulated.close()
    return VirtualRun(
        variant=variant,
        seed=scenario.seed,
        measure=Objectives(played.data.columns).metrics().measure,
        sim=sim,
        points=tuple(curve.points),
        samples=watch.samples,
        dropped_samples=0,
        failed=simulated.failed or curve.failed,
    )


class _CurveWatch(Observer):
    """Tells a curve of every step."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.samples = self.updates = 0
        self.now_s = 0.0

    def stepped(self, samples: int, seconds: float, loss: float, interval: Metrics) -> None:
        del loss, interval
        self.samples, self.now_s = samples, seconds
        self.updates += 1
        self.curve.step(seconds, samples, self.updates)


def _foresee(simulated: SimulatedJob, scenario: Scenario) -> None:
    """Let workers join and die when the scenario says so."""
    network, num = simulated.network, len(scenario.workers)
    for join in scenario.joins:
        num += len(join.workers)
        network.call_at(max(join.at_s - (scenario.replaced_s or 0.0), 0.0), partial(simulated.coordinator.scale, num))
    for death in scenario.deaths:
        worker = worker_name(0, int(death.worker.removeprefix("w")))
        network.call_at(death.at_s, partial(simulated.kill, worker, death.noticed_s))


def _job_of(job: Job, scenario: Scenario, variant: Variant, course: Course) -> Job:
    """The job as the scenario's workers train it, with its tables on one simulated server."""
    resource = cpu_resource(job.cluster)
    units = job.cluster.resources[resource].model_copy(update={"limit": len(scenario.seconds) + 1})
    workers = Workers(
        shares="fitted" if variant.fitted else "equal",
        deadline_s=NEVER_S,
        replacements=len(scenario.deaths),
        backoff_s=0.0,
    )
    return job.model_copy(
        update={
            "data": job.data.model_copy(update={"epochs": course.epochs or job.data.epochs}),
            "cluster": job.cluster.model_copy(update={"resources": job.cluster.resources | {resource: units}}),
            "seed": scenario.seed,
            "sync": variant.policy,
            "launcher": "local",
            "workers": workers,
            "servers": None,
            "tiers": None,
            "emulation": None,
            "plan": None,
            "checkpoint": Checkpoint(every_samples=None, every_minutes=None),
        }
    )


def _plan_of(job: Job, num_workers: int) -> Plan:
    resource = cpu_resource(job.cluster)
    return Plan(
        method="scenario",
        stages=(Stage(first=0, last=0, resource=resource, count=num_workers),),
        servers=PlannedServers(resource=resource, count=1),
        throughput=0.0,
        hours=0.0,
        usd=0.0,
        bottleneck="",
    )


def _result(simulated: SimulatedJob, scenario: Scenario, variant: Variant) -> SimResult:
    flow = simulated.core.flow
    end_s = None if simulated.core.is_over else simulated.network.now_s
    workers = [
        _worker_result(name, seconds, simulated.did[worker_name(0, i)], scenario.joins_at[name], end_s)
        for i, (name, seconds) in enumerate(scenario.seconds.items())
        if worker_name(0, i) in simulated.did
    ]
    pushes = sum(worker.pushes for worker in workers)
    counts = flow.staleness.counts if isinstance(flow, LaneFlow) else {0: pushes} if pushes else {}
    return SimResult(
        policy=variant.policy.label,
        seed=scenario.seed,
        end_s=max((worker.left_s or simulated.network.now_s for worker in workers), default=0.0),
        pushes=pushes,
        updates=simulated.core.clock,
        dropped=0,
        max_lead=max(flow.leads.values()),
        mean_staleness=sum(k * n for k, n in counts.items()) / pushes if pushes else None,
        staleness=counts,
        workers=tuple(workers),
    )


def _worker_result(
    name: str, seconds: float, did: Sequence[Doing], joined_s: float, until_s: float | None
) -> WorkerResult:
    """What a worker did, until the simulation ended; None: until its own last push, when the job was over."""
    end_s = max((end for what, _, end in did if what == "push"), default=joined_s) if until_s is None else until_s
    done = [(what, start, min(end, end_s)) for what, start, end in did if start <= end_s]
    computed = [(start, end) for what, start, end in done if what == "compute"]
    pushed = [(start, end) for what, start, end in done if what == "push"]
    compute_s, push_s = (sum(end - start for start, end in spans) for spans in (computed, pushed))
    return WorkerResult(
        name=name,
        seconds=seconds,
        pushes=len(pushed),
        waits=sum(start > end for (_, end), (start, _) in zip(pushed, computed[1:], strict=False)),
        compute_s=compute_s,
        push_s=push_s,
        wait_s=max(end_s - joined_s - compute_s - push_s, 0.0),
        dropped=0,
        joined_s=joined_s,
        left_s=end_s if until_s is None else None,
    )
