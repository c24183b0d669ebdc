"""Lanes of plans whose workers take whole batches (ASP, SSP, DSSP): how many keep all busy, and how many memory holds.

stage 1, 1 worker     |b0|b1|b2|  |b0'|b1'|        a batch leaves activations in stage 1 until it is back from stage 2:
stage 2, 2 workers       |b0 b0'|                  three batches are under way, and stage 1 holds all of them
                            |b1 b1'|
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from heterps.planning.cost import Problem
    from heterps.planning.plan import Stage

LANES_HELD = 2
"""Batches that a worker of ASP, SSP and DSSP has under way: it computes one while the other is pushed and pulled."""


def lanes_under_way(counts: Sequence[int]) -> int:
    """Return the number of lanes with which workers of ASP, SSP and DSSP never wait for their pushes and pulls.

    There is a batch for every worker, and another for each worker of the largest stage, about: rounded so that these
    have equally many.
    """
    largest = max(counts)
    return largest * (LANES_HELD - 1 + math.floor(sum(counts) / largest + 0.5))


def batches_held(problem: Problem, first: int, last: int, resource: int) -> float:
    """Return the number of whole batches under way that a worker with these layers has memory for; maybe infinite."""
    each = float(problem.terms[resource, first : last + 1, 9].sum()) / LANES_HELD
    memory = float(problem.memory[resource])
    return math.floor(memory / each * (1 + 1e-12)) if each > 0 and math.isfinite(memory) else math.inf


def planned_lanes(problem: Problem, stages: Sequence[Stage]) -> int:
    """Return the lanes with which no worker waits for its pushes and pulls, as far as memory holds their batches."""
    lanes = lanes_under_way([stage.count for stage in stages])
    for stage in stages:
        held = batches_held(problem, stage.first, stage.last, problem.resources.index(stage.resource))
        lanes = int(min(lanes, stage.count * held))
    return lanes


def kept_full(problem: Problem, stages: Sequence[tuple[int, int, int]], counts: Sequence[int]) -> list[int] | None:
    """Raise the counts [N + 1] until memory holds a batch for every worker, where workers take whole batches.

    A stage holds what batches leave in it until they are back from all later stages, so this depends on the counts of
    all of them, which searches that add up stage by stage do not know: they charge LANES_HELD batches. None if no
    counts within the limits suffice.
    """
    if not problem.holds_whole_batches or len(stages) == 1:
        return list(counts)
    held = [batches_held(problem, *stage) for stage in stages]
    units, servers = list(counts[: len(stages)]), counts[len(stages) :]
    while True:
        raised = [max(count, math.ceil(sum(units) / batches)) for count, batches in zip(units, held, strict=True)]
        if raised == units:
            return [*units, *servers]
        units, used = raised, np.zeros(len(problem.resources), np.int64)
        np.add.at(used, [resource for *_, resource in stages], units)
        if problem.needs_servers:
            used[problem.server] += servers[0]
        if (used > problem.limits).any() or max(units) > problem.most_workers:
            return None
