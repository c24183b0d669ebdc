"""The planner's interface: `plan` with one method, `compare` several methods.

The kernels compile on first use, so they are imported when a plan is made and not with heterps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from heterps.config import Cluster
from heterps.errors import HeterpsError
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile

if TYPE_CHECKING:
    from heterps.planning.cost import Problem
    from heterps.planning.schedulers.base import Search, SearchBudget, TracePoint

QUICK_S = 2.0
"""Seconds to search for the exact optimum when another method was asked for, to show the gap."""
PROVEN = 1e-9
"""Relative difference in cost up to which a plan counts as optimal."""


@dataclass(frozen=True)
class Option:
    """The plan of one method, or the reason why it has none, and the trace of its search."""

    method: str
    plan: Plan | None
    reason: str = ""
    trace: tuple[TracePoint, ...] = ()


@dataclass(frozen=True)
class PlanComparison:
    """The chosen plan, and the options of all compared methods."""

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
    provisioner: str = "exact",
    seed: int = 0,
    evaluations: int | None = None,
    seconds: float | None = 60.0,
) -> Plan:
    """Find the cheapest plan by `method` for `samples` x `epochs` samples with at least `throughput` samples/s.

    `provisioner` chooses the counts of each schedule. The search stops after `evaluations` bills or `seconds`, unless
    None, with the best plan so far. `optimal_usd` and `gap` are set if the optimum was proven quickly, otherwise
    `bound_usd`. Raises ConfigError, and PlanInfeasible, which says what would make a plan possible.
    """
    from heterps.planning.cost import Problem

    search: dict[str, Any] = {"provisioner": provisioner, "seed": seed, "evaluations": evaluations, "seconds": seconds}
    return compare(Problem(profile, cluster, throughput, samples, epochs), method, others="none", **search).chosen


def compare(
    problem: Problem,
    method: str = "exact",
    *,
    others: Literal["none", "quick", "all"] = "quick",
    provisioner: str = "exact",
    seed: int = 0,
    evaluations: int | None = None,
    seconds: float | None = 60.0,
    on_start: Callable[[str], None] = lambda _method: None,
) -> PlanComparison:
    """Plan by `method` as `plan` does, and also by every quick method, or by all others with the same budget.

    The option of a method without a plan has the reason. `on_start` is called with each method before its search.
    """
    from heterps.planning.schedulers import METHODS
    from heterps.planning.schedulers.base import SearchBudget

    on_start(method)
    chosen, trace = _plan(problem, method, provisioner, seed, evaluations, seconds)
    if others == "none":
        return PlanComparison(chosen, ())
    budget = SearchBudget(evaluations, seconds if others == "all" else QUICK_S)
    options = []
    for name, known in METHODS.items():
        if name == method:
            options.append(Option(name, chosen, trace=trace))
        elif others == "all" or known.quick:
            on_start(name)
            options.append(_option(problem, name, provisioner, seed, budget, chosen))
    proven = [option.plan.optimal_usd for option in options if option.plan and option.plan.optimal_usd is not None]
    if chosen.optimal_usd is None and proven:  # another method had the time to prove it
        chosen = _with_optimum(chosen, proven[0], None)
        options = [replace(o, plan=_with_optimum(o.plan, proven[0], None)) if o.plan else o for o in options]
    return PlanComparison(chosen, tuple(options))


def _plan(
    problem: Problem, method: str, provisioner: str, seed: int, evaluations: int | None, seconds: float | None
) -> tuple[Plan, tuple[TracePoint, ...]]:
    from heterps.planning.infeasible import explain_infeasible
    from heterps.planning.provisioners import find_provisioner
    from heterps.planning.schedulers import make_scheduler
    from heterps.planning.schedulers.base import SearchBudget, search

    bills_of = find_provisioner(provisioner)
    found = search(problem, make_scheduler(method, problem, seed), SearchBudget(evaluations, seconds), bills_of)
    if found.schedule is None:
        raise explain_infeasible(problem, method, provisioner=provisioner, finished=found.finished)
    optimum = found
    if not (provisioner == "exact" and found.proven):
        quick = SearchBudget(seconds=QUICK_S)
        optimum = (
            found if method == "exact" == provisioner else search(problem, make_scheduler("exact", problem, 0), quick)
        )
    optimal_usd = optimum.usd if optimum.proven else None
    return _finish(problem, method, provisioner, found, optimal_usd, optimum.bound_usd), found.trace


def _option(problem: Problem, method: str, provisioner: str, seed: int, budget: SearchBudget, chosen: Plan) -> Option:
    from heterps.planning.provisioners import find_provisioner
    from heterps.planning.schedulers import make_scheduler
    from heterps.planning.schedulers.base import search

    try:
        found = search(problem, make_scheduler(method, problem, seed), budget, find_provisioner(provisioner))
    except HeterpsError as error:
        return Option(method, None, str(error))
    if found.schedule is None:
        reason = "no plan of this method meets the throughput within the limits" if found.finished else "found no plan"
        return Option(method, None, reason)
    optimal_usd = found.usd if provisioner == "exact" and found.proven else chosen.optimal_usd
    plan = _finish(problem, method, provisioner, found, optimal_usd, chosen.bound_usd)
    return Option(method, plan, trace=found.trace)


def _finish(
    problem: Problem, method: str, provisioner: str, found: Search, optimal_usd: float | None, bound_usd: float | None
) -> Plan:
    from heterps.planning.provisioners.base import to_plan

    assert found.schedule is not None
    assert found.counts is not None
    made = to_plan(problem, found.schedule, found.counts, method, provisioner)
    searched = {"search_s": found.seconds, "evaluations": found.evaluations}
    return _with_optimum(made.model_copy(update=searched), optimal_usd, bound_usd)


def _with_optimum(plan: Plan, optimal_usd: float | None, bound_usd: float | None) -> Plan:
    """Add the optimum and the gap to a plan if the optimum is known, or else the bound."""
    gap = None
    if optimal_usd is not None:
        bound_usd = None
        if plan.usd <= optimal_usd * (1 + PROVEN):
            optimal_usd, gap = plan.usd, 0.0
        elif optimal_usd > 0:
            gap = plan.usd / optimal_usd - 1
    return plan.model_copy(update={"optimal_usd": optimal_usd, "bound_usd": bound_usd, "gap": gap})
