"""A trial: a job runs by a plan for some seconds, to see how fast it is. Nothing of it is kept.

    start   | warm-up       | counted         | counted         |  ...until the seconds or batches are over
    workers | one interval  | an interval of metrics           |
            | of batches    | stage 1: compute 71 %, communicate 12 %, wait 17 %

What a worker spends on a batch is its share of the seconds between two batches. The run's folder is a temporary one,
and the end is an exception out of the coordinator's loop: what is under way is dropped, and no checkpoint is made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from heterps.config import Checkpoint, Emulation, Job, Servers
from heterps.config.launchers import LAUNCHERS, has_workers
from heterps.data.fit import fit_job
from heterps.errors import ConfigError
from heterps.launch.by_plan import emulation_of, run_by_plan
from heterps.model.build import build_model
from heterps.planning.plan import Plan
from heterps.planning.trial import StageSeconds, Trial, TrialStopped
from heterps.temporary import temporary_folder
from heterps.training.metrics.metrics import Metrics
from heterps.training.protocol.layout import job_layout
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer

INTERVAL = 4  # batches, at least
INTERVAL_S = 0.25
"""Least seconds of the warm-up of a trial of real processes, and from one line of metrics to the next: the first
batches of a run are slower, and a line takes as long as a small batch."""
MANY_EPOCHS = 1_000_000
STEP, MOST_STEPS = 4.0, 3  # of scales
STEADY = 0.05
"""Largest relative gain at a larger scale with which this machine counts as fast enough for the smaller scale."""
SMALL = 4_000_000
"""Largest number of dense parameters with which emulated workers may be threads: they compute little and wait long."""


def trial_job(job: Job, *, launcher: str | None = None, emulate: bool = False) -> Job:
    """The job as trials run it: over the same data again and again, without evaluation and checkpoints, on new servers.

    launcher  overrides the job's; inline runs no plan, so that it becomes local
    emulate   units to emulate that the job does not ask to emulate

    Emulated workers of a small model are threads, which start at once, unless the job says what its workers are.
    """
    job = fit_job(job)
    launcher = launcher or job.launcher
    if launcher not in LAUNCHERS:
        raise ConfigError(f"--launcher {launcher}: trials run on local or ray.")
    changed: dict[str, Any] = {
        "launcher": launcher if has_workers(launcher) else "local",
        "data": job.data.model_copy(update={"test": None, "epochs": MANY_EPOCHS}),
        "checkpoint": Checkpoint(every_samples=None, every_minutes=None),
        "plan": None,
        "workers": job.workers.model_copy(update={"restarts": 0, "replacements": 0}),
        "servers": (job.servers or Servers()).model_copy(update={"count": None, "addresses": (), "key": None}),
    }
    if emulate and job.emulation is None:
        changed["emulation"] = Emulation()
    changed_job = job.model_copy(update=changed)
    said = "channel" in job.workers.model_fields_set
    if changed_job.emulation is not None and not LAUNCHERS[launcher].is_spread and not said and _is_small(job):
        workers = changed_job.workers.model_copy(update={"channel": "memory"})
        changed_job = changed_job.model_copy(update={"workers": workers})
    return changed_job


class TrialRunner:
    """Runs trials of a job, made by `trial_job`, one after the other.

    Unless the job sets the scale of emulation, it is one that this machine keeps up with: the first plan is tried at
    larger and larger scales until the next one makes it no faster, in emulated seconds. All other plans then get as
    many real seconds for a batch, and more where they have more workers.
    """

    def __init__(self, job: Job, seconds: float, run: Callable[..., Trial] | None = None) -> None:
        self._job, self._seconds, self._run = job, seconds, run or run_trial
        self._worker_s: float | None = None  # real, of a batch, for each worker

    def __call__(self, plan: Plan) -> Trial:
        if self._job.emulation is None or self._job.emulation.scale is not None:
            return self._run(self._job, plan, seconds=self._seconds)
        if self._worker_s is None:
            return self._find_scale(plan)
        return self._at(plan, self._worker_s * self._num_workers(plan) / self._batch_s(plan))

    def _find_scale(self, plan: Plan) -> Trial:
        emulated = emulation_of(self._job, plan)
        assert emulated is not None
        scale = emulated.scale
        trial = self._at(plan, scale)
        for _ in range(MOST_STEPS):
            before, trial = trial.throughput, self._at(plan, scale * STEP)
            if trial.throughput < before * (1 + STEADY):
                break
            scale *= STEP
        self._worker_s = scale * self._batch_s(plan) / self._num_workers(plan)
        return trial

    def _at(self, plan: Plan, scale: float) -> Trial:
        emulation = Emulation(scale=scale)
        return self._run(self._job.model_copy(update={"emulation": emulation}), plan, seconds=self._seconds)

    def _batch_s(self, plan: Plan) -> float:
        """Predicted seconds of one batch, on the emulated units."""
        return self._job.data.batch_size / plan.throughput

    @staticmethod
    def _num_workers(plan: Plan) -> int:
        return sum(stage.count for stage in plan.stages)


def run_trial(
    job: Job, plan: Plan, *, seconds: float = 5.0, num_batches: int | None = None, interval: int | None = None
) -> Trial:
    """Runs `job`, made by `trial_job`, by `plan`, and measures its speed after a warm-up.

    interval  number of batches of the warm-up, and between two lines of metrics; None: by what the plan promises

    Counts whole intervals of some batches, at least one, until `seconds` (of this machine, not emulated) have passed
    or `num_batches` are done. Raises TrialStopped on Ctrl-C and SIGTERM, and what a run by this plan raises.
    """
    layout = job_layout(job, plan)
    if interval is None:
        is_known = job.emulation is None and plan.is_predicted
        interval = interval_of(job, job.data.batch_size / plan.throughput) if is_known else INTERVAL
    interval = interval if layout.in_rounds else max(interval, layout.num_lanes)  # every lane has had its batch
    job = job.model_copy(update={"metrics_every_samples": interval * job.data.batch_size})
    watch = _TrialWatch(seconds, num_batches, len(plan.stages))
    with temporary_folder("trial-") as folder, ExitStack() as opened:
        try:
            *_, outcome = run_by_plan(job, Run(folder / "run"), plan, opened, resume=False, observer=watch)
        except Enough:
            return watch.trial(plan, job.data.batch_size, is_emulated=job.emulation is not None)
    raise TrialStopped(outcome.stopped_by or "the data is over")


def interval_of(job: Job, batch_s: float) -> int:
    """Number of batches that take INTERVAL_S, if one takes `batch_s`; no more than from line to line of the job's."""
    most = job.metrics_every_samples // job.data.batch_size
    return max(min(math.ceil(INTERVAL_S / batch_s), most), INTERVAL)


class Enough(Exception):
    """An observer raises this to end a run that has been measured for long enough."""


@dataclass
class _TrialWatch(Observer):
    """Counts samples and seconds from the end of the first interval on, and ends the run after the last."""

    most_s: float
    most_batches: int | None
    num_stages: int
    samples: int = 0
    seconds: float = 0.0
    batches: int = 0
    _now: tuple[int, float] = (0, 0.0)
    _from: tuple[int, float] | None = None
    _warm_up: tuple[int, float] = (0, 0.0)
    _began: float = 0.0
    _spent: list[StageSeconds] = field(default_factory=list)  # in all counted intervals
    _late_s: float = 0.0
    _workers: int = 1

    def stepped(self, samples: int, seconds: float, loss: float, interval: Metrics) -> None:
        del loss, interval
        self._now = samples, seconds
        self.batches += self._from is not None

    def measured(self, line: dict[str, Any]) -> None:
        before, self._from = self._from, self._now
        if before is None:  # the warm-up is over
            self._warm_up = self._now
            self._began = time.perf_counter()
            self._spent = [StageSeconds(0.0, 0.0)] * self.num_stages
            return
        self.samples += self._now[0] - before[0]
        took_s = self._now[1] - before[1]
        self.seconds += took_s
        self._spent = [_plus(spent, stage, took_s) for spent, stage in zip(self._spent, line["stages"], strict=True)]
        self._late_s += sum(stage.get("late_s") or 0.0 for stage in line["stages"])
        self._workers = sum(stage["workers"] for stage in line["stages"])
        is_late = time.perf_counter() - self._began >= self.most_s
        if is_late or (self.most_batches is not None and self.batches >= self.most_batches):
            raise Enough

    def trial(self, plan: Plan, batch_size: int, *, is_emulated: bool) -> Trial:
        batches = self.samples / batch_size
        stages = tuple(
            StageSeconds(s.compute_s / batches, s.communicate_s / batches, s.wait_s / batches) for s in self._spent
        )
        late = self._late_s / self._workers / max(time.perf_counter() - self._began, 1e-9)
        throughput = self.samples / self.seconds
        start_s = 0.0 if is_emulated else max(self._warm_up[1] - self._warm_up[0] / throughput, 0.0)
        return Trial(
            plan, throughput, stages, self.batches, self.seconds, is_emulated=is_emulated, start_s=start_s, late=late
        )


def _plus(spent: StageSeconds, stage: dict[str, Any], took_s: float) -> StageSeconds:
    compute, communicate, wait = ((stage[what] or 0.0) * took_s for what in ("compute", "communicate", "wait"))
    return StageSeconds(spent.compute_s + compute, spent.communicate_s + communicate, spent.wait_s + wait)


def _is_small(job: Job) -> bool:
    model = build_model(job.model, job.data.columns, job.seed)
    return sum(parameter.numel() for parameter in model.parameters()) <= SMALL
