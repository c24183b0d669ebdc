"""Layout: which workers run which stage, and which lanes lead through them. A value; its epoch orders it among others.

    lane 0 ---> worker-1.0 ---> worker-2.0       lane l passes through worker (l mod count) of every stage, forward and
    lane 1 ---> worker-1.1 ---> worker-2.0       back. In BSP a lane takes one micro-batch of every batch, so that all
    lane 2 ---> worker-1.0 ---> worker-2.0       lanes together take the batch; with the other policies each takes whole
    lane 3 ---> worker-1.1 ---> worker-2.0       batches of its own, and is what their papers call a worker.

People count stages from 1, and so do the names of workers; code counts them from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, structs

from heterps.config import Job
from heterps.config.policy_words import parse_policy
from heterps.planning.plan import Plan

MIN_MICRO_BATCHES = 4
"""Micro-batches of a batch in BSP for each stage of a pipeline, and for each of its workers: the shares of a batch that
fill and drain it are then small."""

Count = Annotated[int, Meta(ge=0, lt=2**53)]


class StageLayout(Struct, frozen=True):
    """Layers first to last, inclusive, on workers that have `units` of one resource each."""

    first: Count
    last: Count
    resource: str
    workers: Annotated[tuple[str, ...], Meta(min_length=1)]
    units: Annotated[int, Meta(ge=1, lt=2**16)] = 1


class Layout(Struct, frozen=True):
    """Who runs what."""

    stages: Annotated[tuple[StageLayout, ...], Meta(min_length=1)]
    num_lanes: Annotated[int, Meta(ge=1, lt=2**16)]
    epoch: Annotated[int, Meta(ge=1, lt=2**53)] = 1
    in_rounds: bool = True
    """Whether all lanes share each batch and push once for it, or each has batches of its own."""
    shares: tuple[Count, ...] = ()
    """The samples of each lane in rounds, as parts of their sum; empty: all lanes have as many."""

    def __str__(self) -> str:
        counts = " + ".join(f"{len(stage.workers)} {stage.resource}" for stage in self.stages)
        return f"{counts} with {', '.join(map(str, self.shares))} samples of a batch" if self.shares else counts

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(worker for stage in self.stages for worker in stage.workers)

    @property
    def boundaries(self) -> list[int]:
        """The first layer of every stage but the first: what `model.stages.split` takes."""
        return [stage.first for stage in self.stages[1:]]

    def stage_of(self, worker: str) -> int:
        return next(number for number, stage in enumerate(self.stages) if worker in stage.workers)

    def worker_of(self, lane: int, stage: int) -> str:
        workers = self.stages[stage].workers
        return workers[lane % len(workers)]

    def bounds_of(self, lane: int, num_samples: int) -> tuple[int, int]:
        """The first sample of a lane in a batch that all lanes share, and the first after its last."""
        if not self.shares:
            return lane * num_samples // self.num_lanes, (lane + 1) * num_samples // self.num_lanes
        before, total = sum(self.shares[:lane]), sum(self.shares)
        return before * num_samples // total, (before + self.shares[lane]) * num_samples // total

    def num_of(self, lane: int, num_samples: int) -> int:
        """Number of samples of a lane in a batch that all lanes share."""
        first, end = self.bounds_of(lane, num_samples)
        return end - first

    def lanes_of(self, worker: str) -> range:
        """The lanes of a worker, in rising order."""
        workers = self.stages[self.stage_of(worker)].workers
        return range(workers.index(worker), self.num_lanes, len(workers))


def worker_name(stage: int, number: int) -> str:
    """The name of a worker; stages count from 0."""
    return f"worker-{stage + 1}.{number}"


def job_layout(job: Job, plan: Plan) -> Layout:
    """The layout that a run of `job` by `plan` begins with.

    An inline run has one worker with all units, in one stage. It is in step with itself whatever the policy.
    """
    if not job.has_workers:
        stage, last = plan.stages[0], plan.stages[-1].last
        alone = StageLayout(0, last, stage.resource, (worker_name(0, 0),), job.num_threads)
        return Layout((alone,), job.workers.lanes or 1)
    layout = make_layout(
        plan, in_rounds=job.sync.in_rounds, batch_size=job.data.batch_size, num_lanes=job.workers.lanes
    )
    return accumulating(job, layout)


def accumulating(job: Job, layout: Layout) -> Layout:
    """The layout with more lanes where the micro-batches of a job that accumulates gradients pass several stages.

    A worker that has all layers divides the micro-batch of a lane itself (training/model/replicas.py).
    """
    if not layout.in_rounds or len(layout.stages) == 1:
        return layout
    return structs.replace(layout, num_lanes=layout.num_lanes * job.optimizers.accumulate)


def make_layout(plan: Plan, *, in_rounds: bool, batch_size: int, num_lanes: int | None = None) -> Layout:
    """The layout that a run by `plan` begins with. `in_rounds`: as the policy says.

    Lanes are those that were asked for, or those that the plan was made with, or enough to keep workers busy.
    """
    stages = tuple(
        StageLayout(s.first, s.last, s.resource, tuple(worker_name(number, k) for k in range(s.count)))
        for number, s in enumerate(plan.stages)
    )
    counts = [stage.count for stage in plan.stages]
    lanes = num_lanes or _planned_lanes(plan, in_rounds=in_rounds, batch_size=batch_size)
    return Layout(
        stages, lanes or enough_lanes(counts, in_rounds=in_rounds, batch_size=batch_size), in_rounds=in_rounds
    )


def _planned_lanes(plan: Plan, *, in_rounds: bool, batch_size: int) -> int | None:
    """The lanes that the plan was made with, if they fit the policy and the batch size of the job."""
    if plan.lanes is None or plan.sync is None or parse_policy(plan.sync).in_rounds != in_rounds:
        return None
    least, most = max(stage.count for stage in plan.stages), batch_size if in_rounds else plan.lanes
    return plan.lanes if least <= plan.lanes <= most else None


def enough_lanes(counts: Sequence[int], *, in_rounds: bool, batch_size: int) -> int:
    """Return a number of lanes that keeps the workers of all stages busy.

    In rounds each worker of a stage gets equally many, and in a pipeline several, if a batch has enough samples.
    Without rounds there is a batch for every worker, so one lane a worker in one stage: each further lane would make
    gradients older by an update. In a pipeline the number is rounded up so that the workers of the largest stage have
    equally many, for a lane that shares its worker with more than others do would be slower, and SSP and DSSP let
    nobody run ahead.
    """
    largest = max(counts)
    if not in_rounds:
        return largest * math.ceil(sum(counts) / largest)
    least = math.lcm(*counts)
    wanted = MIN_MICRO_BATCHES * max(len(counts), largest) if len(counts) > 1 else 1
    lanes = least * min(math.ceil(wanted / least), batch_size // least)
    return lanes or largest
