"""The frontier of cost against throughput, from the cheapest plan of all to the fastest.

The least USD for a floor is a rising staircase: the cheapest plan for a floor is also the cheapest for every floor
between that and its own throughput, where the next step begins.

     USD
      |                 ____o      1. the cheapest plan for any floor: the first step
      |            ____o           2. from each step, the cheapest plan that is faster: the next one
      |  ______o--'                3. more steps than wanted: spread floors evenly (in ratio) up to the fastest plan
      +----------------------> samples/s        4. and halve the widest gaps, until there are as many as wanted

Every point is a step of the exact staircase; if floors were spread, there may be other steps between the points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heterps.planning.cost import Problem
from heterps.planning.infeasible import highest_throughput, slowest_s
from heterps.planning.optimum import cheapest, find_cheapest, with_floor
from heterps.planning.plan import Plan

MOST_POINTS = 24
NEXT = 1e-9
"""Relative difference in throughput below which two plans are the same step."""
NARROW = 1.02
"""Ratio of its ends below which a gap is not halved any more."""
MOST_TRIES = 4
"""Largest number of searches in gaps, per wanted point."""


@dataclass(frozen=True)
class Frontier:
    """Pareto-optimal plans; each costs more and is faster than the one before."""

    plans: tuple[Plan, ...]
    complete: bool  # whether there is no other step between them

    @property
    def proven(self) -> bool:
        return all(plan.gap == 0 for plan in self.plans)


def frontier(
    problem: Problem, most_points: int = MOST_POINTS, on_point: Callable[[Plan], None] = lambda _: None
) -> Frontier:
    """Compute the frontier of a problem; its own floor is one of those spread. `on_point` is called with each plan.

    The result is empty if the limits are too low for any plan.
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
    """Return a throughput that every plan reaches."""
    return problem.profile.batch_size / slowest_s(problem)


def _walk(problem: Problem, most_points: int, on_point: Callable[[Plan], None]) -> tuple[list[Plan], bool]:
    """Walk step by step from the cheapest plan of all [1, 2]; return the plans, and whether the fastest was reached."""
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
    """Find more steps between the plans, in the widest gap first, until there are enough or no gap has one [4].

    A gap reaches from a plan to the lowest floor at which the next plan is known to be the cheapest. It is halved; once
    narrow, it is searched right after its lower end, which gives the next step or proves that there is none.
    """
    found = list(plans)
    lowest = {plan.throughput: plan.throughput for plan in plans}  # lowest floor at which each plan is the cheapest
    for _ in range(MOST_TRIES * most_points):
        gaps = [(lowest[above.throughput] / below.throughput, below, above) for below, above in pairwise(found)]
        width, below, above = max(gaps, key=lambda gap: gap[0], default=(1.0, found[0], found[0]))
        if len(found) >= most_points or width <= 1 + 2 * NEXT:
            break
        floor = below.throughput * (math.sqrt(width) if width > NARROW else 1 + NEXT)
        step = _step(problem, floor, above)
        if step is None:
            lowest[above.throughput] = floor
        else:
            on_point(step)
            found.insert(found.index(above), step)
            lowest[step.throughput] = floor
    complete = all(lowest[above.throughput] <= below.throughput * (1 + 2 * NEXT) for below, above in pairwise(found))
    return Frontier(_pareto(found), complete)  # a step may cost no more than the one below, where that costs nothing


def _step(problem: Problem, floor: float, above: Plan) -> Plan | None:
    """Return the cheapest plan for a floor if it is a step before `above`; else None."""
    plan = cheapest(with_floor(problem, floor))
    if plan is None or plan.throughput >= above.throughput * (1 - NEXT) or plan.usd >= above.usd * (1 - NEXT):
        return None
    return plan


def _pareto(plans: list[Plan]) -> tuple[Plan, ...]:
    """Keep the plans for which no faster plan costs the same or less. Costs that differ by rounding are equal."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: -plan.throughput):
        if not kept or plan.usd < kept[-1].usd * (1 - NEXT):
            kept.append(plan)
    return tuple(reversed(kept))
