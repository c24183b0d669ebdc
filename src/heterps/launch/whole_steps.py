"""Real steps of a job in this process, to compare with the sum of its layers.

    start | warm-up: 4 steps | 5 steps | 5 steps | 5 steps | ...  until the seconds are over, at least twice
    |                          |_______ seconds of each group: their median is the result
    |__ what these steps took more than so many others: the start, in which the first rows are read and decoded

The steps go through the engine of an inline run, with its threads, its reader and new tables. Groups hold several steps
because the reader decodes rows for many batches at once; a group that another program disturbed moves the median
little.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import pairwise
from typing import NamedTuple

from heterps.config import Checkpoint, Job
from heterps.launch.by_plan import run_by_plan
from heterps.launch.trials import Enough
from heterps.planning.inline import INLINE_JOB, cpu_resource, layer_seconds, unpredicted_plan
from heterps.profiling.profile import Overhead, Profile
from heterps.profiling.timing import summarize
from heterps.temporary import temporary_folder
from heterps.training.metrics.metrics import Metrics
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer

WARM_UP = 4
GROUP = 5
LEAST_GROUPS = 2
MANY_EPOCHS = 1_000_000


def with_whole_steps(profile: Profile, job: Job, threads: Iterable[int], *, seconds: float) -> Profile:
    """Return the profile with `whole_steps` of these numbers of threads, each measured for about `seconds`.

    It stays as it is if it has no measured costs of a CPU, or if the job's tables are on servers: such steps would need
    new servers, or disturb those that run. Raises KeyboardInterrupt if a signal ends the steps.
    """
    if job.servers is not None or not _is_measured(profile, job):
        return profile
    scaled, known = profile.at_batch_size(job.data.batch_size), dict(profile.whole_steps or {})
    found = []
    for num_threads in threads:
        found.append(step_seconds(job.model_copy(update={"threads": num_threads}), seconds))
        known[num_threads] = found[-1].seconds / layer_seconds(scaled, job.cluster, num_threads).seconds
    started = Overhead(start_s=min(steps.start_s for steps in found))  # another program only adds to it
    changed = {
        "version": 2,
        "whole_steps": known,
        "whole_steps_error": max(steps.error for steps in found),
        "overheads": dict(profile.overheads or {}) | {INLINE_JOB: started},
    }
    return profile.model_copy(update=changed)


class StepSeconds(NamedTuple):
    """Seconds of a real step, their relative error, and what the first steps of a run took more."""

    seconds: float
    error: float
    start_s: float


def step_seconds(job: Job, seconds: float) -> StepSeconds:
    """Measure the seconds of a real step of `job` in this process."""
    watch = _watch_steps(_scratch(job), seconds)
    marks = watch.marks[WARM_UP::GROUP]
    timing = summarize([(after - before) / GROUP for before, after in pairwise(marks)])
    start_s = max(watch.warm_up_s - (WARM_UP + 1) * timing.median_s, 0.0)
    return StepSeconds(timing.median_s, timing.error, start_s)


def _is_measured(profile: Profile, job: Job) -> bool:
    """Tell whether every layer has a measured cost on the resource as which an inline run is billed."""
    resource = cpu_resource(job.cluster)
    costs = [layer.costs.get(resource) for layer in profile.on(job.cluster).layers]
    return all(cost is not None and not cost.estimated for cost in costs)


def _scratch(job: Job) -> Job:
    """The job as its steps are measured: again and again over the data, without evaluation, start and checkpoints."""
    data = job.data.model_copy(update={"test": None, "validation": None, "epochs": MANY_EPOCHS})
    never = Checkpoint(every_samples=None, every_minutes=None)
    changed = {"launcher": "inline", "data": data, "checkpoint": never, "plan": None, "start": None, "emulation": None}
    return job.model_copy(update=changed)


def _watch_steps(job: Job, seconds: float) -> _StepWatch:
    """Run steps until the seconds are over."""
    watch = _StepWatch(seconds)
    plan = unpredicted_plan(job.cluster, num_cores=job.num_threads)
    with temporary_folder("steps-") as folder, ExitStack() as opened:
        try:
            run_by_plan(job, Run(folder / "run"), plan, opened, resume=False, observer=watch)
            raise KeyboardInterrupt  # the data is read again and again: only a signal ends the run itself
        except Enough:
            pass
    return watch


class _StepWatch(Observer):
    """Notes when each step ends, and ends the run after enough of them."""

    def __init__(self, seconds: float) -> None:
        self.marks: list[float] = []
        self.warm_up_s = 0.0  # from the beginning of training to the first mark that counts
        self._seconds = seconds

    def stepped(self, samples: int, seconds: float, loss: float, interval: Metrics) -> None:
        del samples, loss, interval
        self.marks.append(time.perf_counter())
        if len(self.marks) == WARM_UP + 1:
            self.warm_up_s = seconds
        counted = len(self.marks) - WARM_UP - 1
        if counted >= GROUP * LEAST_GROUPS and self.marks[-1] - self.marks[WARM_UP] >= self._seconds:
            raise Enough
