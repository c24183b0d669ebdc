"""Why there is no plan, in the user's terms, and the least that must give way.

1. servers are needed, and none may be rented               -> raise that limit
2. some station is too slow with any number of units        -> its layers; no limit helps, the floor must come down
3. the limits                                               -> the highest throughput within them, and each limit
                                                               that would do if raised alone, or all together
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from heterps.config import Cluster
from heterps.errors import PlanInfeasible
from heterps.planning.chains import Chains, Undecided
from heterps.planning.cost import Problem, Schedules, Terms, stage_terms
from heterps.planning.plan import Plan
from heterps.planning.provisioners.base import to_plan
from heterps.planning.provisioners.exact import exact
from heterps.planning.schedulers.base import Budget, search
from heterps.planning.schedulers.exact import Exact

UNLIMITED = 10**7
EXPLAIN_S = 5.0


@dataclass(frozen=True)
class Slowest:
    """The station that stays the slowest however many units every stage gets."""

    first: int
    last: int
    resource: int
    terms: Terms

    @property
    def fixed_s(self) -> float:
        return max(self.terms.compute_fixed, self.terms.comm_fixed)


def explain_infeasible(problem: Problem, method: str) -> PlanInfeasible:
    """The error to raise when `method` found no plan."""
    asked = f"{_number(problem.throughput)} samples/s"
    if (exists := _cheapest(problem)) is not None:
        return PlanInfeasible(
            f"method {method} finds no plan for {asked} within the limits, but there is one: method exact plans it "
            f"for {exists.usd:,.2f} USD."
        )
    if problem.server_s > 0 and problem.server < 0:
        name = problem.cluster.server_resource
        needed = math.ceil(problem.server_s / problem.tau_max)
        return PlanInfeasible(
            f"the model needs parameter servers, and their resource {name!r} has limit 0. For {asked} raise its limit "
            f"to at least {needed}, or name another server_resource in the cluster."
        )
    slowest = slowest_station(problem)
    if problem.tau_max < slowest.fixed_s:
        return PlanInfeasible(f"no plan can reach {asked}: {_too_slow(problem, slowest)}{_reachable(problem)}")
    raises = [f"{name} from {limit} to {needed}" for name, limit, needed in single_raises(problem)]
    if raises:
        remedy = f"raise the limit of {', or of '.join(raises)}"
    else:
        unlimited = _cheapest(_with_limits(problem, UNLIMITED))
        remedy = f"raise these limits together: {_joint_raise(problem, unlimited)}" if unlimited else "raise the limits"
    return PlanInfeasible(
        f"no plan within the limits reaches {asked}.{_reachable(problem)} To reach {asked}, {remedy}."
    )


def slowest_station(problem: Problem) -> Slowest:
    """Over all schedules with units without end, the station that decides the least possible tau.

    reach[j][t] = min over b of max(fixed seconds of stage j..b on t, min over s != t of reach[b+1][s])
    """
    num_layers, num_resources = problem.num_layers, len(problem.resources)
    nothing = Slowest(0, 0, 0, Terms(0.0, 0.0, 0.0, 0.0))
    reach: list[list[Slowest | None]] = [[None] * num_resources for _ in range(num_layers)]
    for first in range(num_layers - 1, -1, -1):
        for t in range(num_resources):
            best: Slowest | None = None
            for last in range(first, num_layers):
                stage = Slowest(first, last, t, stage_terms(problem, first, last, t))
                if best is not None and stage.fixed_s >= best.fixed_s:
                    break
                rest = (
                    _fastest([r for s, r in enumerate(reach[last + 1]) if s != t]) if last + 1 < num_layers else nothing
                )
                if rest is None or math.isinf(stage.fixed_s):
                    continue
                worst = max(stage, rest, key=lambda station: station.fixed_s)
                if best is None or worst.fixed_s < best.fixed_s:
                    best = worst
            reach[first][t] = best
    found = _fastest(reach[0])
    assert found is not None, "Problem lets no layer pass that cannot run anywhere"
    return found


def _fastest(stations: list[Slowest | None]) -> Slowest | None:
    return min((s for s in stations if s is not None), key=lambda station: station.fixed_s, default=None)


def highest_throughput(problem: Problem) -> tuple[Plan | None, bool]:
    """The fastest plan within the limits, to a millionth, or None when they are too low for any plan; and whether that
    is sure: where it is not, there may be a faster one.
    """
    finite = problem.terms[np.isfinite(problem.terms)]
    slow, fast = float(finite.sum()) + problem.server_s, Chains(problem).fastest_s()
    fastest, sure = _within_limits(problem, slow)
    if fastest is None:
        return None, sure
    while slow > fast * (1 + 1e-6):
        middle = math.sqrt(slow * fast)
        schedule, decided = _within_limits(problem, middle)
        sure = sure and decided
        if schedule is None:
            fast = middle
        else:
            slow, fastest = middle, schedule
    floor = problem.profile.batch_size / slow
    within = Problem(problem.profile, problem.cluster, floor, problem.samples, problem.epochs)
    return to_plan(within, fastest, exact(within, fastest[None]).counts[0], "exact"), sure


def single_raises(problem: Problem) -> list[tuple[str, int, int]]:
    """(resource, limit, the least limit that makes a plan possible if no other is touched), least extra USD/h first."""
    found = []
    for t, name in enumerate(problem.resources):
        prices, limits = np.zeros(len(problem.resources)), problem.limits.copy()
        prices[t], limits[t] = 1.0, UNLIMITED
        chains = Chains(problem, prices, limits)
        try:
            chain = chains.least(problem.tau_max, chains.heaviest(problem.tau_max))
        except Undecided:
            continue
        if chain.schedule is not None:
            found.append((name, int(problem.limits[t]), round(chain.weight / problem.tau_max)))
    price = dict(zip(problem.resources, problem.prices.tolist(), strict=True))
    return sorted(found, key=lambda item: price[item[0]] * (item[2] - item[1]))


def _within_limits(problem: Problem, tau: float) -> tuple[Schedules | None, bool]:
    """A schedule that is done in tau, or None, and whether that is sure. It takes the least share of the limits."""
    chains = Chains(problem, prices=1.0 / problem.limits)
    try:
        return chains.least(tau, chains.heaviest(tau)).schedule, True
    except Undecided as undecided:
        return undecided.schedule, undecided.schedule is not None


def _cheapest(problem: Problem) -> Plan | None:
    found = search(problem, Exact(problem, seed=0), Budget(seconds=EXPLAIN_S))
    if found.schedule is None or found.counts is None:
        return None
    return to_plan(problem, found.schedule, found.counts, "exact")


def _with_limits(problem: Problem, limit: int) -> Problem:
    resources = {
        name: resource.model_copy(update={"limit": limit}) if resource.limit else resource
        for name, resource in problem.cluster.resources.items()
    }
    cluster = Cluster(resources=resources, server_resource=problem.cluster.server_resource)
    return Problem(problem.profile, cluster, problem.throughput, problem.samples, problem.epochs)


def _joint_raise(problem: Problem, plan: Plan) -> str:
    used = dict.fromkeys(problem.resources, 0)
    used[plan.servers.resource] = plan.servers.count
    for stage in plan.stages:
        used[stage.resource] += stage.count
    limits = zip(problem.resources, problem.limits.tolist(), strict=True)
    return ", ".join(f"{name} from {limit} to {used[name]}" for name, limit in limits if used[name] > limit)


def _too_slow(problem: Problem, slowest: Slowest) -> str:
    batch_size = problem.profile.batch_size
    side = "compute" if slowest.terms.compute_fixed >= slowest.terms.comm_fixed else "communication"
    return (
        f"{problem.layer_names(slowest.first, slowest.last)} on {problem.resources[slowest.resource]} spends "
        f"{slowest.fixed_s:.3g} s of {side} on a batch of {batch_size} that more units do not divide, so with any "
        f"number of units it stays below {_number(batch_size / slowest.fixed_s)} samples/s. No other resource is "
        "faster."
    )


def _reachable(problem: Problem) -> str:
    fastest, sure = highest_throughput(problem)
    if fastest is None:
        return " The limits are too low for any plan, however slow." if sure else ""
    reached = f"{'' if sure else 'at least '}{_number(fastest.throughput)} samples/s (bottleneck: {fastest.bottleneck})"
    return f" The highest throughput within the limits is {reached}: ask for that or less."


def _number(value: float) -> str:
    """Rounded down, so that what is promised can be had: four digits below 10,000, whole numbers above."""
    if value >= 10_000:
        return f"{math.floor(value):,}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / unit + 1e-9) * unit:,.4g}"
