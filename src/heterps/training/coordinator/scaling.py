"""Layouts that a job can have: what its model, policy and cluster allow, and the next one when a stage is scaled."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from heterps.config import Clip, Job
from heterps.errors import ConfigError
from heterps.model.trace import trace_or_whole
from heterps.training.model.buffers import model_buffers
from heterps.training.model.objectives import is_mean_over_samples
from heterps.training.protocol.layout import Layout, StageLayout, accumulating, enough_lanes, worker_name
from heterps.training.protocol.stage_tables import stage_tables

OLD = 3
"""From this many updates on a gradient is old enough to cost quality where batches are large."""


def check_layout(job: Job, layout: Layout, model: nn.Module) -> None:
    """ConfigError where the job cannot run in this layout."""
    most = max(len(stage.workers) for stage in layout.stages)
    if layout.num_lanes < most:
        raise ConfigError(
            f"workers.lanes: {layout.num_lanes} lanes leave some of the {most} workers of a stage without work: set it "
            f"to {most} or more, or leave it out"
        )
    if layout.in_rounds and layout.num_lanes > job.data.batch_size:
        raise ConfigError(
            f"data.batch_size: {job.data.batch_size} samples cannot be divided among {layout.num_lanes} lanes"
        )
    if job.sync.drops_late:
        raise ConfigError("sync: backup workers are for `heterps simulate`: a round of real workers needs all of them")
    if layout.in_rounds and layout.num_lanes > 1 and not is_mean_over_samples(model):
        raise ConfigError(
            f"{type(model).__name__} has a loss of whole batches (its method `loss`), which cannot be divided among "
            f"{layout.num_lanes} lanes: give it a method `losses` with a loss for each sample, or choose another sync"
        )
    if job.workers.shares == "fitted" and not layout.in_rounds:
        raise ConfigError(
            f"workers.shares: with sync {job.sync.label} every worker takes whole batches, and a faster one takes more "
            "of them: leave it out, or use sync bsp"
        )
    if job.workers.shares == "fitted" and len(layout.stages) > 1:
        raise ConfigError(
            f"workers.shares: the samples of a worker pass through all {len(layout.stages)} stages of the plan, so its "
            "speed is not its own: leave it out, or use a plan of one stage"
        )
    if job.on_not_finite != "raise":
        _check_skipping(job, layout, model)
    if job.optimizers.accumulate > 1:
        _check_accumulation(job, layout, model)
    if job.optimizers.clip is not None:
        _check_clipping(job, layout, model, job.optimizers.clip)


def _check_skipping(job: Job, layout: Layout, model: nn.Module) -> None:
    """Refuse to skip batches where a part of one could stay: in tables, or in buffers such as running means."""
    stages = len(layout.stages)
    if stages > 1 and not layout.in_rounds:
        raise ConfigError(
            f"on_not_finite: with sync {job.sync.label} the last of {stages} stages has pushed a batch before the "
            "first finds that it is not finite: use sync bsp, a plan of one stage, or on_not_finite: raise"
        )
    if model_buffers(model) and layout.in_rounds and len(layout.workers) > 1:
        raise ConfigError(
            f"on_not_finite: layers of {type(model).__name__} keep statistics of batches, and of a batch that one of "
            f"{len(layout.workers)} workers skips the others would keep theirs: use one worker, another sync, or "
            "on_not_finite: raise"
        )


def _check_clipping(job: Job, layout: Layout, model: nn.Module, clip: Clip) -> None:
    """Refuse limits of gradients that nobody sees as a whole."""
    field = "norm" if clip.norm is not None else "dense_norm" if clip.dense_norm is not None else None
    if not layout.in_rounds and len(layout.stages) > 1:
        if field is not None:
            raise ConfigError(
                f"optimizers.clip.{field}: with sync {job.sync.label} each of the {len(layout.stages)} stages applies "
                "its own part of a gradient: clip each table (clip.table_norm), or use sync bsp, or a plan of one stage"
            )
        tables = stage_tables(job, model, trace_or_whole(model), [stage.first for stage in layout.stages])
        if shared := [spec.name for spec in tables.tables.sparse if len(tables.stages[spec.name]) > 1]:
            raise ConfigError(
                f"optimizers.clip.table_norm: with sync {job.sync.label} several stages push their own parts of the "
                f"gradient of {', '.join(shared)}: use sync bsp, or a plan that has the layers of a table in one stage"
            )
    if field is not None and job.workers.dense == "all_reduce" and len(layout.workers) > 1:
        raise ConfigError(
            f"optimizers.clip.{field}: the norm is made on the servers, where dense parameters must be too: set "
            "workers.dense: servers, or clip tables only (clip.table_norm)"
        )


def _check_accumulation(job: Job, layout: Layout, model: nn.Module) -> None:
    if not layout.in_rounds and len(layout.stages) > 1:
        raise ConfigError(
            f"optimizers.accumulate: with sync {job.sync.label} batches pass the {len(layout.stages)} stages whole: "
            "choose a smaller data.batch_size, or sync bsp, or a plan of one stage"
        )
    if not is_mean_over_samples(model):
        raise ConfigError(
            f"optimizers.accumulate: {type(model).__name__} has a loss of whole batches (its method `loss`), which "
            "cannot be divided into micro-batches: give it a method `losses` with a loss for each sample"
        )


def layout_warnings(job: Job, layout: Layout, model: nn.Module) -> list[str]:
    """What differs in this layout from one process and from workers with a batch each, for better or worse."""
    found = [_staleness_warning(layout), _norm_warning(job, layout, model)]
    return [warning for warning in found if warning is not None]


def _staleness_warning(layout: Layout) -> str | None:
    """Tell of gradients that are older than the number of workers makes one expect, or old enough to cost quality."""
    workers, age = max(len(stage.workers) for stage in layout.stages), layout.num_lanes - 1
    if layout.in_rounds or (layout.num_lanes <= workers and age < OLD):
        return None
    through, instead = f"{workers} workers", "fewer workers, or rounds (sync: bsp)"
    if layout.num_lanes > workers:
        stages = f"{len(layout.stages)} stages" if len(layout.stages) > 1 else through
        through = f"{layout.num_lanes} lanes through {stages}"
        instead = f"fewer lanes (workers.lanes, at least {workers})"
    return (
        f"{through}: this many batches are under way at once, and a gradient is about {age} updates old when it is "
        f"applied. If quality suffers, use a smaller learning rate, or {instead}"
    )


def _norm_warning(job: Job, layout: Layout, model: nn.Module) -> str | None:
    """Tell what BatchNorm, which looks at more than a sample, does otherwise than in one process."""
    norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    pieces = layout.num_lanes if layout.in_rounds else 1
    if len(layout.stages) == 1:
        pieces *= job.optimizers.accumulate
    if not norms or max(pieces, layout.num_lanes) == 1:
        return None
    shown = ", ".join(norms[:3]) + (f" and {len(norms) - 3} more" if len(norms) > 3 else "")
    if pieces == 1:
        return (
            f"{shown}: each of the {layout.num_lanes} lanes keeps running statistics of BatchNorm of its own, and "
            "those of the first are saved and evaluated with. Use LayerNorm, or one lane (workers.lanes: 1)"
        )
    return (
        f"{shown}: BatchNorm normalises over a micro-batch, one of {pieces} of a batch, where one process takes the "
        "whole: losses will differ, and the running statistics that are saved are those of the first worker. Use "
        "LayerNorm, or one lane (workers.lanes: 1, with a worker a stage) without optimizers.accumulate"
    )


def scaled(
    job: Job,
    layout: Layout,
    number: int,
    count: int,
    *,
    next_number: int | None = None,
    servers: Mapping[str, int] | None = None,
) -> Layout:
    """The layout with `count` workers in stage `number`, from 0 on. ConfigError where there cannot be as many.

    Those who stay keep their place, and the last leave. New ones are named from `next_number` on, by default as if
    nobody had left before: a name that somebody had must not be given again, for servers know by it which pushes they
    have applied. `servers` are units of the cluster too, by resource.
    """
    if number >= len(layout.stages):
        raise ConfigError(f"there is no stage {number + 1}: the plan has {len(layout.stages)}, counted from 1")
    stage = layout.stages[number]
    counts = [len(other.workers) for other in layout.stages]
    counts[number] = count
    others = (servers or {}).get(stage.resource, 0)
    used = others + sum(c for c, other in zip(counts, layout.stages, strict=True) if other.resource == stage.resource)
    if used > (limit := job.cluster.resources[stage.resource].limit) and count > len(stage.workers):
        raise ConfigError(
            f"that would be {used} units of {stage.resource!r}{', servers included,' if others else ''} and the job's "
            f"cluster allows {limit}: scale to {max(limit - used + count, 0)} at most, or raise the limit with "
            "`heterps replan`"
        )
    start = len(stage.workers) if next_number is None else next_number
    new = range(start, start + count - len(stage.workers))
    workers = stage.workers[:count] + tuple(worker_name(number, k) for k in new)
    stages = list(layout.stages)
    stages[number] = StageLayout(stage.first, stage.last, stage.resource, workers, stage.units)
    lanes = job.workers.lanes or enough_lanes(counts, in_rounds=layout.in_rounds, batch_size=job.data.batch_size)
    return accumulating(job, Layout(tuple(stages), max(lanes, *counts), layout.epoch + 1, layout.in_rounds))
