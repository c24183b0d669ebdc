"""Rounds (BSP) of a plan: how long one takes, with which number of lanes, and what it spends its time on.

round_kernels.py draws a round. This module evaluates one plan, term by term; the kernels search among many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heterps.planning.cost import Problem
from heterps.planning.plan import Stage


@dataclass(frozen=True)
class RoundSeconds:
    """The seconds of a round, by what takes them."""

    lanes: int
    pipeline_s: float  # one micro-batch through all stages
    slowest_s: float  # the other micro-batches of the slowest stage, and its parameters' way
    servers_s: float
    overhead_s: float
    reduced_s: float  # the all-reduce of all stages
    slowest: int  # number of the slowest stage

    @property
    def seconds(self) -> float:
        return self.overhead_s + self.pipeline_s + self.slowest_s + self.servers_s + self.reduced_s


def round_of(problem: Problem, stages: Sequence[Stage], num_servers: int) -> tuple[float, int, str]:
    """Return the seconds of a round with the best number of lanes, that number, and what takes longest."""
    tried = [evaluate(problem, stages, num_servers, int(lanes)) for lanes in problem.lanes_of]
    best = min((one for one in tried if one is not None), key=lambda one: one.seconds, default=None)
    if best is None:
        return math.inf, 1, "memory"
    stage = stages[best.slowest]
    name = f"{problem.layer_names(stage.first, stage.last)} on {stage.resource}"
    servers = f"servers on {problem.cluster.server_resource}"
    parts = {servers: best.servers_s, name: best.pipeline_s + best.slowest_s, "overhead": best.overhead_s,
             "the all-reduce": best.reduced_s}  # fmt: skip
    return best.seconds, best.lanes, max(parts, key=parts.__getitem__)


def evaluate(problem: Problem, stages: Sequence[Stage], num_servers: int, lanes: int) -> RoundSeconds | None:
    """Evaluate a round of `lanes` micro-batches; None if a stage has more workers, or its memory does not suffice."""
    pipeline_s, slowest_s, slowest, served_s = 0.0, 0.0, 0, problem.server_s
    others, reduced_s = sum(stage.count for stage in stages) - 1, 0.0
    for number, stage in enumerate(stages):
        t = problem.resources.index(stage.resource)
        rows = problem.terms[t, stage.first : stage.last + 1]
        divided, fixed, comm_divided, comm_fixed = (float(rows[:, i].sum()) for i in range(4))
        input_divided, input_fixed = (float(rows[0, i]) for i in (4, 5))
        fixed += float(rows[0, 12])
        if stage.first == 0:
            comm_divided, comm_fixed = comm_divided + input_divided, comm_fixed + input_fixed
        else:
            divided, fixed = divided + input_divided, fixed + input_fixed
        samples = math.ceil(lanes / stage.count) * math.ceil(problem.profile.batch_size / lanes)
        held = float(rows[:, 9].sum()) + float(rows[:, 10].sum()) * samples / problem.profile.batch_size
        if stage.count > lanes or held > float(problem.memory[t]) * (1 + 1e-12):
            return None
        micro_s = fixed + divided / lanes
        added_s = (math.ceil(lanes / stage.count) - 1) * micro_s + comm_fixed + comm_divided / stage.count
        pipeline_s += micro_s
        served_s += stage.count * float(rows[:, 11].sum())
        reduced_s += float(rows[:, 13].sum()) * (stage.count - 1) / stage.count
        if added_s > slowest_s:
            slowest_s, slowest = added_s, number
    servers_s = served_s / num_servers if num_servers else 0.0
    overhead_s = problem.overhead_s + problem.worker_s * others
    return RoundSeconds(lanes, pipeline_s, slowest_s, servers_s, overhead_s, reduced_s, slowest)
