"""The frontier: cost against throughput, from the cheapest plan of all to the fastest.

The least USD for a floor is a rising staircase: the cheapest plan for a floor is also the cheapest for every floor
between that and its own throughput, where the next step begins.

     USD
      |                 ____o      1. the cheapest plan for any floor: the first step
      |            ____o           2. from each step, the cheapest plan that is faster: the next one
      |  ______o--'                3. more steps than wanted: spread floors evenly (in ratio) up to the fastest plan
      +----------------------> samples/s        4. and halve the widest gaps, until there are as many as wanted

Every point is a step of the exact staircase; where floors were spread, there may be others between them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heterps.planning.cost import Problem
from heterps.planning.infeasible import highest_throughput, slowest_s
from heterps.planning.optimum import cheapest, find_cheapest, with_floor
from heterps.planning.plan import Plan

MOST_POINTS = 24
NEXT = 1e-9
"""Relative. A plan that is faster by less is not another step."""


@dataclass(frozen=True)
class Frontier:
    """Plans, each dearer and faster than the one before: none is dearer and slower than another."""

    plans: tuple[Plan, ...]
    complete: bool  # there is no step between two of them

    @property
    def proven(self) -> bool:
        return all(plan.gap == 0 for plan in self.plans)


def frontier(
    problem: Problem, most_points: int = MOST_POINTS, on_point: Callable[[Plan], None] = lambda _: None
) -> Frontier:
    """The frontier of a problem that has a plan; its own floor is one of those spread. `on_point` hears of each found.

    Empty when the limits are too low for any plan.
    """
    walked, complete = _walk(problem, most_points, on_point)
    if complete:
        return Frontier(_pareto(walked), complete)
    fastest, _ = highest_throughput(problem)
    last = walked[-1] if fastest is None else fastest
    floors = np.geomspace(walked[0].throughput, last.throughput, most_points)[1:].tolist()
    spread = _pareto([walked[0], *_spread(problem, sorted({*floors, problem.throughput}), on_point)])
    return _filled(problem, spread, most_points, on_point)


def slowest_floor(problem: Problem) -> float:
    """A floor that every plan meets."""
    return problem.profile.batch_size / slowest_s(problem)


def _walk(problem: Problem, most_points: int, on_point: Callable[[Plan], None]) -> tuple[list[Plan], bool]:
    """Step by step from the cheapest plan of all [1, 2], and whether the fastest was reached."""
    plans: list[Plan] = []
    floor = slowest_floor(problem)
    while True:
        plan, sure = find_cheapest(with_floor(problem, floor))
        if plan is None:
            return plans, sure
        if len(plans) == most_points:
            return plans, False
        on_point(plan)
        plans.append(plan)
        floor = plan.throughput * (1 + NEXT)


def _spread(problem: Problem, floors: list[float], on_point: Callable[[Plan], None]) -> list[Plan]:  # [3]
    plans: list[Plan] = []
    for floor in floors:
        if plans and floor <= plans[-1].throughput:
            continue
        plan = cheapest(with_floor(problem, floor))
        if plan is not None:
            on_point(plan)
            plans.append(plan)
    return plans


def _filled(problem: Problem, plans: Sequence[Plan], most_points: int, on_point: Callable[[Plan], None]) -> Frontier:
    """More steps between the plans, in the widest gap first, until there are enough or no gap has one [4].

    A gap is searched at its middle, and where its upper half has no step right after its lower end: either there is
    one, or none in all of it.
    """
    found = list(plans)
    closed: set[float] = set()  # throughputs of the plans right after which comes the next one
    while len(found) < most_points:
        gaps = [gap for gap in itertools.pairwise(found) if gap[0].throughput not in closed]
        if not gaps:
            break
        below, above = max(gaps, key=lambda gap: gap[1].throughput / gap[0].throughput)
        step = _step(problem, math.sqrt(below.throughput * above.throughput), above)
        if step is None:
            step = _step(problem, below.throughput * (1 + NEXT), above)
            closed.add(below.throughput)
        if step is not None:
            on_point(step)
            found.insert(found.index(above), step)
    return Frontier(tuple(found), all(plan.throughput in closed for plan in found[:-1]))


def _step(problem: Problem, floor: float, above: Plan) -> Plan | None:
    """The cheapest plan for a floor, if that is a step before `above`."""
    plan = cheapest(with_floor(problem, floor))
    if plan is None or plan.throughput >= above.throughput * (1 - NEXT) or plan.usd >= above.usd * (1 - NEXT):
        return None
    return plan


def _pareto(plans: list[Plan]) -> tuple[Plan, ...]:
    """Those that no other equals or beats in cost while being faster. Equal costs within rounding are equal."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: -plan.throughput):
        if not kept or plan.usd < kept[-1].usd * (1 - NEXT):
            kept.append(plan)
    return tuple(reversed(kept))
