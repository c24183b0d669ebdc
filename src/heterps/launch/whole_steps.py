"""Real steps of a job in this process, to compare with the sum of its layers.

    start | warm-up: 4 steps | 5 steps | 5 steps | 5 steps | ...  until the seconds are over, at least twice
                               |_______ seconds of each group: their median is the result

The steps go through the engine of an inline run, with its threads, its reader and new tables. Groups hold several steps
because the reader decodes rows for many batches at once; a group that another program disturbed moves the median
little.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise

from heterps.config import Checkpoint, Job
from heterps.launch.by_plan import run_by_plan
from heterps.launch.trials import Enough
from heterps.planning.inline import cpu_resource, layer_seconds, unpredicted_plan
from heterps.profiling.profile import Profile
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
    scaled, known, errors = profile.at_batch_size(job.data.batch_size), dict(profile.whole_steps or {}), []
    for num_threads in threads:
        step_s, error = step_seconds(job.model_copy(update={"threads": num_threads}), seconds)
        known[num_threads] = step_s / layer_seconds(scaled, job.cluster, num_threads).seconds
        errors.append(error)
    return profile.model_copy(update={"version": 2, "whole_steps": known, "whole_steps_error": max(errors)})


def step_seconds(job: Job, seconds: float) -> tuple[float, float]:
    """Measure the seconds of a real step of `job` in this process, and return them with their relative error."""
    groups = _group_seconds(_scratch(job), seconds)
    timing = summarize(groups)
    return timing.median_s, timing.error


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


def _group_seconds(job: Job, seconds: float) -> Sequence[float]:
    """Return the seconds of a step, for each group of steps."""
    watch = _StepWatch(seconds)
    plan = unpredicted_plan(job.cluster, num_cores=job.num_threads)
    with temporary_folder("steps-") as folder, ExitStack() as opened:
        try:
            run_by_plan(job, Run(folder / "run"), plan, opened, resume=False, observer=watch)
            raise KeyboardInterrupt  # the data is read again and again: only a signal ends the run itself
        except Enough:
            pass
    marks = watch.marks[WARM_UP::GROUP]
    return [(after - before) / GROUP for before, after in pairwise(marks)]


class _StepWatch(Observer):
    """Notes when each step ends, and ends the run after enough of them."""

    def __init__(self, seconds: float) -> None:
        self.marks: list[float] = []
        self._seconds = seconds

    def stepped(self, samples: int, seconds: float, loss: float, interval: Metrics) -> None:
        del samples, seconds, loss, interval
        self.marks.append(time.perf_counter())
        counted = len(self.marks) - WARM_UP - 1
        if counted >= GROUP * LEAST_GROUPS and self.marks[-1] - self.marks[WARM_UP] >= self._seconds:
            raise Enough
