"""What others call: `plan` for one method, `compare` for all of them side by side.

The kernels compile on first use, so they are imported when a plan is made and not when heterps is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heterps.config import Cluster
from heterps.errors import HeterpsError
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile

if TYPE_CHECKING:
    from heterps.planning.cost import Problem
    from heterps.planning.schedulers.base import Search

QUICK_S = 2.0
"""How long the exact optimum is looked for where another method was asked for, to show the gap."""
PROVEN = 1e-9
"""Relative. A plan this close to the optimum is optimal."""


@dataclass(frozen=True)
class Option:
    """One row of the table of options: the plan of a method, or why it has none."""

    method: str
    plan: Plan | None
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """The plan asked for, and what every method would have planned."""

    chosen: Plan
    options: tuple[Option, ...]


def plan(
    profile: Profile,
    cluster: Cluster,
    *,
    throughput: float,
    samples: float,
    epochs: float = 1,
    method: str = "exact",
    seed: int = 0,
    evaluations: int | None = None,
    seconds: float | None = 60.0,
) -> Plan:
    """The cheapest plan that `method` finds for `samples` x `epochs` samples at no less than `throughput` samples/s.

    Stops after `evaluations` bills or `seconds`, unless None, with the best plan so far. `optimal_usd` and `gap` are
    filled where the optimum could be proven quickly. Raises PlanInfeasible, which says what would relax it, and
    ConfigError.
    """
    from heterps.planning.cost import Problem

    problem = Problem(profile, cluster, throughput, samples, epochs)
    return _plan(problem, method, seed, evaluations, seconds)


def compare(
    profile: Profile,
    cluster: Cluster,
    *,
    throughput: float,
    samples: float,
    epochs: float = 1,
    method: str = "exact",
    seed: int = 0,
    evaluations: int | None = None,
    seconds: float | None = 60.0,
) -> Comparison:
    """`plan` by `method`, and an option for every method. One that has no plan says why in its option."""
    from heterps.planning.cost import Problem
    from heterps.planning.schedulers import METHODS

    problem = Problem(profile, cluster, throughput, samples, epochs)
    chosen = _plan(problem, method, seed, evaluations, seconds)
    options = (
        Option(name, chosen) if name == method else _option(problem, name, seed, chosen.optimal_usd) for name in METHODS
    )
    return Comparison(chosen, tuple(options))


def _plan(problem: Problem, method: str, seed: int, evaluations: int | None, seconds: float | None) -> Plan:
    from heterps.planning.explain import explain_infeasible
    from heterps.planning.schedulers import make_scheduler
    from heterps.planning.schedulers.base import Budget, search

    found = search(problem, make_scheduler(method, problem, seed), Budget(evaluations, seconds))
    if found.schedule is None:
        raise explain_infeasible(problem, method)
    if found.proven:
        return _finish(problem, method, found, found.usd)
    optimum = search(problem, make_scheduler("exact", problem, seed), Budget(seconds=QUICK_S))
    return _finish(problem, method, found, optimum.usd if optimum.proven else None)


def _option(problem: Problem, method: str, seed: int, optimal_usd: float | None) -> Option:
    from heterps.planning.schedulers import make_scheduler
    from heterps.planning.schedulers.base import Budget, search

    try:
        found = search(problem, make_scheduler(method, problem, seed), Budget(seconds=QUICK_S))
    except HeterpsError as error:
        return Option(method, None, str(error))
    if not found.finished:
        return Option(method, None, f"not done within {QUICK_S:g} s; --method {method} gives it more")
    if found.schedule is None:
        return Option(method, None, "no plan of this method meets the throughput within the limits")
    return Option(method, _finish(problem, method, found, optimal_usd))


def _finish(problem: Problem, method: str, found: Search, optimal_usd: float | None) -> Plan:
    from heterps.planning.provision import to_plan

    assert found.schedule is not None
    assert found.counts is not None
    made = to_plan(problem, found.schedule, found.counts, method)
    gap = None
    if optimal_usd is not None:
        if made.usd <= optimal_usd * (1 + PROVEN):
            optimal_usd, gap = made.usd, 0.0
        elif optimal_usd > 0:
            gap = made.usd / optimal_usd - 1
    return made.model_copy(
        update={"search_s": found.seconds, "evaluations": found.evaluations, "optimal_usd": optimal_usd, "gap": gap}
    )
