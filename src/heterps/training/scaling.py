"""Layouts that a job can have: what its model, policy and cluster allow, and the next one when a stage is scaled."""

from __future__ import annotations

from torch import nn

from heterps.config import BSP, Job
from heterps.errors import ConfigError
from heterps.training.layout import Layout, StageLayout, enough_lanes, worker_name
from heterps.training.losses import is_mean_over_samples


def check_layout(job: Job, layout: Layout, model: nn.Module) -> None:
    """ConfigError where the job cannot run in this layout."""
    most = max(len(stage.workers) for stage in layout.stages)
    if layout.num_lanes < most:
        raise ConfigError(
            f"workers.lanes: {layout.num_lanes} lanes leave some of the {most} workers of a stage without work: set it "
            f"to {most} or more, or leave it out"
        )
    if isinstance(job.sync, BSP) and layout.num_lanes > job.data.batch_size:
        raise ConfigError(
            f"data.batch_size: {job.data.batch_size} samples cannot be divided among {layout.num_lanes} lanes"
        )
    if isinstance(job.sync, BSP) and job.sync.backup:
        raise ConfigError("sync: backup workers are for `heterps simulate`: a round of real workers needs all of them")
    if isinstance(job.sync, BSP) and layout.num_lanes > 1 and not is_mean_over_samples(model):
        raise ConfigError(
            f"{type(model).__name__} has a loss of whole batches (its method `loss`), which cannot be divided among "
            f"{layout.num_lanes} lanes: give it a method `losses` with a loss for each sample, or choose another sync"
        )


def scaled(job: Job, layout: Layout, number: int, count: int) -> Layout:
    """The layout with `count` workers in stage `number`, from 0 on. ConfigError where there cannot be as many."""
    if number >= len(layout.stages):
        raise ConfigError(f"there is no stage {number + 1}: the plan has {len(layout.stages)}")
    stage = layout.stages[number]
    counts = [len(other.workers) for other in layout.stages]
    counts[number] = count
    used = sum(c for c, other in zip(counts, layout.stages, strict=True) if other.resource == stage.resource)
    if used > (limit := job.cluster.resources[stage.resource].limit):
        raise ConfigError(f"that would be {used} units of {stage.resource!r}, and the job's cluster allows {limit}")
    workers = tuple(worker_name(number, k) for k in range(count))
    stages = list(layout.stages)
    stages[number] = StageLayout(stage.first, stage.last, stage.resource, workers)
    in_rounds = isinstance(job.sync, BSP)
    lanes = job.workers.lanes or enough_lanes(counts, in_rounds=in_rounds, batch_size=job.data.batch_size)
    return Layout(tuple(stages), max(lanes, *counts), layout.epoch + 1)
