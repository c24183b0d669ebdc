"""Virtual runs by the engine of real ones: a scenario's workers as workers of a simulated job (see job.py).

    scenario   w0 1.0 s   w1 2.3 s        a stage of two workers, a lane each; a turn takes as long as the scenario says
    bsp        a round has a batch of the job's size for every worker, as one large batch that they divide
    others     every worker takes batches of the job's size

What no real run does, gradients that are damped or compensated, rounds that drop or sum them, batches fitted to
workers from the first round on, workers that come and go, is played by the policy simulator instead (see virtual.py).
"""

from __future__ import annotations

from collections.abc import Callable

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
from heterps.sim.worker import SimulatedWorker
from heterps.threads import torch_threads
from heterps.training.coordinator.lane_flow import LaneFlow
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.buffers import model_buffers
from heterps.training.model.objectives import Objectives, is_mean_over_samples
from heterps.training.protocol.layout import worker_name
from heterps.training.run.observer import Observer


def is_played_by_job(job: Job, scenario: Scenario, variant: Variant) -> bool:
    """Whether real workers could do what a variant does, in a scenario in which nobody comes or goes.

    Models with buffers, as BatchNorm has them, are left to the policy simulator: real workers hand buffers over at cuts
    only, and a curve is evaluated in between.
    """
    is_steady = not (scenario.joins or scenario.deaths) and scenario.iterations in (None, ENDLESS)
    if not is_steady or not variant.can_train or variant.fitted:
        return False
    model = build_model(job.model, job.data.columns, job.seed)
    if model_buffers(model):
        return False
    return not variant.by_rounds or len(scenario.workers) == 1 or is_mean_over_samples(model)


def train_simulated(
    job: Job, scenario: Scenario, variant: Variant, course: Course, on_point: Callable[[Point], None]
) -> VirtualRun:
    """Train `job` with the workers of a scenario, by the same code that trains with real ones."""
    played = _job_of(job, scenario, variant, course)
    num_rows = open_reader(played).num_rows * played.data.epochs
    most = expected_samples(scenario, job.data.batch_size, num_rows)
    speeds = {worker_name(0, i): Speed(name, s, scenario) for i, (name, s) in enumerate(scenario.seconds.items())}
    with torch_threads(1), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(scenario.seed)
        test = read_test(played)
        curve = Curve(max(most // course.points, 1), lambda: simulated.evaluate(test), on_point)
        watch = _CurveWatch(curve)
        simulated = SimulatedJob(
            played,
            _plan_of(played, len(scenario.workers)),
            lambda worker, _turn, now: speeds[worker].finish(now),
            observer=watch,
            latency_s=scenario.latency_s,
            server_s=scenario.server_s,
            seed=scenario.seed,
        )
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


def _job_of(job: Job, scenario: Scenario, variant: Variant, course: Course) -> Job:
    """The job as the scenario's workers train it, with its tables on one simulated server."""
    workers = len(scenario.workers)
    batch_size = job.data.batch_size * (workers if variant.by_rounds else 1)
    data = job.data.model_copy(update={"batch_size": batch_size, "epochs": course.epochs or job.data.epochs})
    return job.model_copy(
        update={
            "data": data,
            "seed": scenario.seed,
            "sync": variant.policy,
            "launcher": "local",
            "workers": Workers(lanes=workers),
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
    names = list(scenario.seconds)
    end_s = simulated.network.now_s
    workers = [
        _worker_result(names[i], scenario.workers[i], worker, None if simulated.core.is_over else end_s)
        for i, worker in enumerate(simulated.workers.values())
    ]
    pushes = sum(worker.pushes for worker in workers)
    counts = flow.staleness.counts if isinstance(flow, LaneFlow) else {0: pushes} if pushes else {}
    return SimResult(
        policy=variant.policy.label,
        seed=scenario.seed,
        end_s=max((worker.left_s or end_s for worker in workers), default=0.0),
        pushes=pushes,
        updates=simulated.core.clock,
        dropped=0,
        max_lead=max(flow.leads.values()),
        mean_staleness=sum(k * n for k, n in counts.items()) / pushes if pushes else None,
        staleness=counts,
        workers=tuple(workers),
    )


def _worker_result(name: str, seconds: float, worker: SimulatedWorker, until_s: float | None) -> WorkerResult:
    """What a worker did, until the simulation ended; None: until its own last push, when the job was over."""
    end_s = max((end for what, _, end in worker.did if what == "push"), default=0.0) if until_s is None else until_s
    did = [(what, start, min(end, end_s)) for what, start, end in worker.did if start <= end_s]
    computed = [(start, end) for what, start, end in did if what == "compute"]
    pushed = [(start, end) for what, start, end in did if what == "push"]
    compute_s, push_s = (sum(end - start for start, end in spans) for spans in (computed, pushed))
    return WorkerResult(
        name=name,
        seconds=seconds,
        pushes=len(pushed),
        waits=sum(start > end for (_, end), (start, _) in zip(pushed, computed[1:], strict=False)),
        compute_s=compute_s,
        push_s=push_s,
        wait_s=max(end_s - compute_s - push_s, 0.0),
        dropped=0,
        joined_s=0.0,
        left_s=end_s if until_s is None else None,
    )
