"""Explain why there is no plan, and the smallest changes that would make one possible.

1. another method has a plan                                -> that method
2. some station is too slow with any number of units        -> its layers; no limit helps, the floor must be lower
3. the limits are too low                                   -> the highest throughput within them, each limit that
                                                               suffices if raised alone, and limits raised together

A raise is minimal: with one unit less, and everything else as stated, there is no plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from heterps.errors import PlanInfeasible
from heterps.planning.chain_kernels import count_units
from heterps.planning.chains import Chains, Undecided
from heterps.planning.cost import ROUNDING, Problem, Schedules, Terms, stage_terms
from heterps.planning.infeasible_real import fastest_in_rounds, memory_reason
from heterps.planning.optimum import find_cheapest, with_conditions, with_floor, with_limits
from heterps.planning.plan import Plan
from heterps.planning.provisioners.base import to_plan
from heterps.planning.provisioners.exact import exact

MOST_UNITS = 10**7
MOST_NAMED = 3


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


@dataclass(frozen=True)
class LimitRaise:
    """A limit, and the value to which it must be raised."""

    resource: str
    limit: int
    needed: int
    usd_per_hour: float
    is_least: bool = True  # False: sufficient, but whether less would suffice is unknown

    @property
    def extra_usd_per_hour(self) -> float:
        return self.usd_per_hour * (self.needed - self.limit)

    def __str__(self) -> str:
        return f"{self.resource} from {self.limit} to {self.needed}"


def explain_infeasible(
    problem: Problem, method: str, *, provisioner: str = "exact", finished: bool = True
) -> PlanInfeasible:
    """Make the error for a `method` that found no plan; unless `finished`, its search ended by its budget."""
    asked = f"{problem.throughput:,.10g} samples/s"
    by = f"method {method}" if provisioner == "exact" else f"method {method} with provisioner {provisioner}"
    exists, sure = find_cheapest(problem)
    if exists is not None:  # [1]
        usd = f"{exists.usd:,.2f} USD"
        return PlanInfeasible(
            f"{by} finds no plan for {asked} within the limits, but there is one: method exact with provisioner exact, "
            f"the defaults, plan it for {usd}."
            if finished
            else f"{by} found no plan for {asked} in the seconds or evaluations that it was given, but "
            f"there is one, for {usd}: give it more{', or use method exact' if method != 'exact' else ''}."
        )
    if problem.conditions is not None and (short := memory_reason(problem)) is not None:
        return PlanInfeasible(f"no plan fits into the memory: {short}")
    if problem.in_rounds:
        return _explain_rounds(problem, asked)
    if problem.conditions is not None and problem.conditions.max_staleness is not None:
        any_age = replace(problem.conditions, max_staleness=None, most_workers=None)
        stale, _ = find_cheapest(with_conditions(problem, any_age))
        if stale is not None:
            return PlanInfeasible(
                f"no plan for {asked} has a staleness of {problem.conditions.max_staleness} or less: the cheapest of "
                f"all has {(stale.lanes or 1) - 1}, for {stale.usd:,.2f} USD. Allow a larger --max-staleness, ask for "
                "less, or use --sync bsp, in which gradients are not stale."
            )
        return explain_infeasible(with_conditions(problem, any_age), method, provisioner=provisioner, finished=finished)
    opened = _opened(problem)
    if problem.tau_max < slowest_station(opened).fixed_s:  # [2]
        bound = problem.profile.batch_size / slowest_station(opened).fixed_s
        return PlanInfeasible(f"no plan can reach {asked}: {_too_slow(opened)}{_reachable(problem, bound)}")
    remedies = [*_remedies(problem)]  # [3]
    if not remedies:
        return PlanInfeasible(
            f"no plan can reach {asked}: it takes more than {MOST_UNITS:,} units of a resource.{_reachable(problem)}"
        )
    none = "no plan within the limits reaches" if sure else "no plan within the limits was found that reaches"
    why = f"{none} {asked}.{_reachable(problem)}"
    if _servers_shut_out(problem):
        name = problem.cluster.server_resource
        why = f"the model needs parameter servers, and their resource {name!r} has limit 0."
        remedies.append("name another server_resource in the cluster")
    return PlanInfeasible(f"{why} To reach {asked}, {', or '.join(remedies)}.")


def _explain_rounds(problem: Problem, asked: str) -> PlanInfeasible:
    fastest, _ = highest_throughput(problem)
    if fastest is None:
        return PlanInfeasible("the limits are too low for any plan in rounds, however slow: raise them.")
    return PlanInfeasible(
        f"no plan in rounds within the limits was found that reaches {asked}. The highest throughput that was found is "
        f"{_number(fastest.throughput)} samples/s: ask for that or less, raise limits, or use a policy without rounds "
        "(--sync ssp:3), in which workers do not wait for each other."
    )


def slowest_station(problem: Problem) -> Slowest:
    """Find the station that decides the smallest possible tau over all schedules with unlimited units.

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
                sent_s = float(problem.terms[t, last, 7])  # which a stage with one more layer saves
                kept_s = max(stage.terms.compute_fixed, stage.terms.comm_fixed - sent_s)
                if best is not None and kept_s * (1 - ROUNDING) >= best.fixed_s:
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
    """Find the fastest plan within the limits, to a millionth, or None if they are too low for any plan.

    The second value says whether that is proven; if not, there may be a faster plan. In rounds to a hundredth.
    """
    if problem.in_rounds:
        return fastest_in_rounds(problem, problem.profile.batch_size / slowest_s(problem)), False
    slow, fast = slowest_s(problem), Chains(problem).fastest_s()
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
    within = with_floor(problem, problem.profile.batch_size / slow)
    return to_plan(within, fastest, exact(within, fastest[None]).counts[0], "exact"), sure


def slowest_s(problem: Problem) -> float:
    """Upper bound on the seconds per batch of all plans, including rounding errors."""
    seconds = problem.terms[:, :, [*range(9), 12, 13]]
    most = float(seconds[np.isfinite(seconds)].sum()) + problem.server_s
    if problem.in_rounds:  # what no units divide is paid for every micro-batch, and every worker has its weights
        most = (most + problem.overhead_s) * int(problem.lanes_of.max()) + float(problem.terms[:, :, 11].sum() * 1e4)
        most += problem.worker_s * float(problem.limits.sum())
    return most * (1 + ROUNDING)


def single_raises(problem: Problem) -> list[LimitRaise]:
    """Find the smallest raise of each single limit that makes a plan possible, the lowest extra USD per hour first.

    If the servers' resource has limit 0, only raising that one helps.
    """
    opened = _opened(problem)
    able = [problem.cluster.server_resource] if _servers_shut_out(problem) else opened.resources
    raises = []
    for name in able:
        with suppress(Undecided):
            raises.append(_least_raise(problem, opened, name, {}))
    return sorted((r for r in raises if r is not None), key=lambda r: r.extra_usd_per_hour)


def joint_raise(problem: Problem) -> list[LimitRaise]:
    """Find limits that make a plan possible if raised together; empty if no limits help. Raises Undecided.

    It starts from the units of the plan with the lowest USD per hour without limits, and lowers each limit in turn to
    the smallest value that the others allow.
    """
    opened = _opened(problem)
    prices = opened.prices if opened.prices.any() else np.ones_like(opened.prices)
    chains = Chains(opened, prices, np.full(len(opened.resources), MOST_UNITS))
    schedule = chains.least(problem.tau_max, chains.heaviest(problem.tau_max)).schedule
    if schedule is None:
        return []
    needed = {name: n for name, n in _least_units(opened, schedule).items() if n > _limit(problem, name)}
    raised: dict[str, LimitRaise] = {}
    for name in sorted(needed, key=lambda name: -problem.cluster.resources[name].usd_per_hour):
        others = {other: n for other, n in needed.items() if other != name}
        resource = problem.cluster.resources[name]
        least: LimitRaise | None = LimitRaise(name, resource.limit, needed[name], resource.usd_per_hour, is_least=False)
        with suppress(Undecided):
            least = _least_raise(problem, opened, name, others)
        assert least is not None, "the plan that these limits were read from keeps them"
        needed[name] = least.needed
        if least.needed > least.limit:
            raised[name] = least
    return [raised[name] for name in opened.resources if name in raised]


def _least_raise(problem: Problem, opened: Problem, name: str, others: dict[str, int]) -> LimitRaise | None:
    """Find the smallest limit of a resource, at least its own, that allows a plan if `others` are raised.

    Raises Undecided.
    """
    t = opened.resources.index(name)
    limits = np.array([others.get(r, _limit(problem, r)) for r in opened.resources], dtype=np.int64)
    prices = np.zeros(len(limits))
    prices[t], limits[t] = 1.0, MOST_UNITS
    chains = Chains(opened, prices, limits)
    chain = chains.least(problem.tau_max, chains.heaviest(problem.tau_max))
    if chain.schedule is None:
        return None
    resource = problem.cluster.resources[name]
    return LimitRaise(
        name, resource.limit, max(round(chain.weight / problem.tau_max), resource.limit), resource.usd_per_hour
    )


def _least_units(problem: Problem, schedule: Schedules) -> dict[str, int]:
    """Return the smallest numbers of units of each resource with which a schedule meets the floor."""
    units = np.empty(len(problem.resources), np.int64)
    count_units(problem.kernel_inputs, schedule, units)
    return dict(zip(problem.resources, units.tolist(), strict=True))


def _servers_shut_out(problem: Problem) -> bool:
    return problem.server_s > 0 and problem.server < 0


def _opened(problem: Problem) -> Problem:
    """Return the problem with limit 1 for each resource of limit 0 that could run layers or the needed servers."""
    shut = [name for name in problem.rentable if _limit(problem, name) == 0]
    return with_limits(problem, dict.fromkeys(shut, 1)) if shut else problem


def _limit(problem: Problem, name: str) -> int:
    return problem.cluster.resources[name].limit


def _within_limits(problem: Problem, tau: float) -> tuple[Schedules | None, bool]:
    """Find a schedule for tau that uses the smallest share of the limits, or None; and whether that is proven."""
    chains = Chains(problem, prices=1.0 / problem.limits)
    try:
        return chains.least(tau, chains.heaviest(tau)).schedule, True
    except Undecided as undecided:
        return undecided.schedule, undecided.schedule is not None


# --- words -----------------------------------------------------------------------------------------------------------


def _remedies(problem: Problem) -> Iterable[str]:
    """List what to raise: the cheapest single limits, and limits together if only these help or they cost less."""
    single = single_raises(problem)
    try:
        joint = joint_raise(problem)
    except Undecided:
        if not single:
            yield "raise the limits"
        joint = []
    if single:
        more = f", or of {len(single) - MOST_NAMED} others" if len(single) > MOST_NAMED else ""
        yield f"raise the limit of {', or of '.join(map(str, single[:MOST_NAMED]))}{more}"
    extra = sum(r.extra_usd_per_hour for r in joint)
    if len(joint) > 1 and (not single or extra < single[0].extra_usd_per_hour):
        doubt = "" if all(r.is_least for r in joint) else " (less may do)"
        yield f"raise these limits together: {', '.join(map(str, joint))}{doubt}"


def _too_slow(problem: Problem) -> str:
    batch_size, slowest = problem.profile.batch_size, slowest_station(problem)
    side = "compute" if slowest.terms.compute_fixed >= slowest.terms.comm_fixed else "communication"
    return (
        f"{problem.layer_names(slowest.first, slowest.last)} on {problem.resources[slowest.resource]} spends "
        f"{slowest.fixed_s:.3g} s of {side} on a batch of {batch_size:,} that more units do not divide, so with any "
        f"number of units it stays below {_number(batch_size / slowest.fixed_s)} samples/s. No other "
        "schedule is faster."
    )


def _reachable(problem: Problem, bound: float | None = None) -> str:
    """Describe the highest throughput within the limits, and the `bound` for higher limits if it is given."""
    fastest, sure = highest_throughput(problem)
    if fastest is None:
        return " The limits are too low for any plan, however slow." if sure else ""
    raised = "" if bound is None else f"; higher limits help to just below {_number(bound)} samples/s"
    reached = f"{'' if sure else 'at least '}{_number(fastest.throughput)} samples/s (bottleneck: {fastest.bottleneck})"
    return f" The highest throughput within the limits is {reached}: ask for that or less{raised}."


def _number(value: float) -> str:
    """Format a throughput, rounded down so that it can be reached: four digits below 10,000, whole numbers above."""
    if value >= 10_000:
        return f"{math.floor(value):,}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / unit + 1e-9) * unit:,.4g}"
