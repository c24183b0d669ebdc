"""The planner's interface: `plan` with one method, `compare` several methods.

The kernels compile on first use, so they are imported when a plan is made and not with heterps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from heterps.config import Cluster, PolicyConfig
from heterps.config.policy_words import parse_policy
from heterps.errors import ConfigError, HeterpsError, PlanInfeasible
from heterps.planning.plan import Plan
from heterps.profiling.profile import Dense, Profile

if TYPE_CHECKING:
    from heterps.planning.cost import Problem
    from heterps.planning.schedulers.base import Search, SearchBudget, TracePoint

CostModel = Literal["auto", "paper", "real"]
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
    cost: CostModel = "auto",
    sync: str | PolicyConfig | None = None,
    rows: float | None = None,
    rows_in_memory: float | None = None,
    deadline: float | None = None,
    lanes: Sequence[int] | None = None,
    max_staleness: int | None = None,
    dense: Dense | None = None,
) -> Plan:
    """Find the cheapest plan by `method` for `samples` x `epochs` samples with at least `throughput` samples/s.

    cost      the bill: `paper`, or `real` with all that cluster and profile say of machines; `auto`: real if the
              cluster says more than prices and limits, or if one of the following is given
    sync      the policy that the job will have, such as "bsp" or "ssp:3"; None: with a real bill that of the job that
              was profiled, if the profile says; otherwise batches are divided as in the paper
    rows      rows expected in all tables; None: as many as the profile expects, if it looked at the data
    rows_in_memory  share of the rows that servers keep in memory, the others being on disk (tiers); None: as many as
              the tiers of the job that was profiled allow, or all if it has none
    deadline  largest expected hours of the job, with start-up and interruptions
    lanes     numbers of micro-batches to choose from, for policies in rounds
    max_staleness  largest expected staleness of gradients in updates, for policies without rounds
    dense     how weights are kept in step, as `workers.dense` of the job: by servers, or by all_reduce in rounds;
              None: in rounds as in the job that was profiled, otherwise by servers

    Where trials of plans for the same policy kept in the profile which share of the throughput of their slowest
    station they reached (`Profile.reached`), predictions count on as much.

    `provisioner` chooses the counts of each schedule. The search stops after `evaluations` bills or `seconds`, unless
    None, with the best plan so far. `optimal_usd` and `gap` are set if the optimum was proven quickly, otherwise
    `bound_usd`. Raises ConfigError, and PlanInfeasible, which says what would make a plan possible.
    """
    search: dict[str, Any] = {"provisioner": provisioner, "seed": seed, "evaluations": evaluations, "seconds": seconds}
    asked: dict[str, Any] = {
        "cost": cost, "sync": sync, "rows": rows, "rows_in_memory": rows_in_memory, "lanes": lanes,
        "max_staleness": max_staleness, "dense": dense,
    }  # fmt: skip
    problem = make_problem(profile, cluster, throughput, samples, epochs, deadline=deadline, **asked)

    def find(one: Problem) -> PlanComparison:
        return within_staleness(one, lambda p: compare(p, method, others="none", **search))

    return within_deadline(problem, deadline, find)[1].chosen


def make_problem(
    profile: Profile,
    cluster: Cluster,
    throughput: float | None,
    samples: float,
    epochs: float = 1,
    *,
    cost: CostModel = "auto",
    sync: str | PolicyConfig | None = None,
    rows: float | None = None,
    rows_in_memory: float | None = None,
    deadline: float | None = None,
    lanes: Sequence[int] | None = None,
    max_staleness: int | None = None,
    dense: Dense | None = None,
) -> Problem:
    """Make the problem of `plan`. Without a throughput the deadline gives the floor. Raises ConfigError."""
    from heterps.planning.cost import Problem
    from heterps.planning.real import conditions_of

    policy = parse_policy(sync) if isinstance(sync, str) else sync
    asked = any(option is not None for option in (policy, rows, rows_in_memory, deadline, max_staleness, lanes, dense))
    if cost == "paper" and asked:
        raise ConfigError("the paper's cost model knows no policy, rows or deadline: leave them out, or use cost real.")
    is_real = cost == "real" or (cost == "auto" and (asked or cluster.has_facts))
    conditions = None
    if is_real and policy is None and profile.job is not None:
        policy = parse_policy(profile.job.sync)
    if is_real:
        conditions = conditions_of(
            profile.job, policy, dense, rows=rows, rows_in_memory=rows_in_memory,
            lanes=tuple(lanes) if lanes else None, max_staleness=max_staleness,
            most_workers=None if max_staleness is None else (max_staleness + 1) // 2,
        )  # fmt: skip
    floor = throughput
    if deadline is not None:
        if not deadline > 0:
            raise ConfigError(f"deadline must be a number of hours above 0 (got {deadline}).")
        floor = max(throughput or 0.0, samples * epochs / (deadline * 3600))
    if floor is None:
        raise ConfigError("say how fast the job must be: a throughput, or a deadline.")
    reached = 1.0
    if cost != "paper" and profile.reached_for == (policy.label if policy is not None else None):
        reached = profile.reached or 1.0
    return Problem(profile, cluster, floor, samples, epochs, conditions=conditions, reached=reached)


def within_deadline(
    problem: Problem, deadline: float | None, find: Callable[[Problem], PlanComparison]
) -> tuple[Problem, PlanComparison]:
    """Find a plan whose expected hours, with start-up and interruptions, are within the deadline.

    Where they are not, the floor is raised by as much as they exceed it, and the search repeated: the result meets the
    deadline, and is the cheapest for the floor of the problem that is returned with it.
    """
    from heterps.planning.optimum import with_floor

    while True:
        compared = find(problem)
        if deadline is None or compared.chosen.hours <= deadline * (1 + PROVEN):
            return problem, compared
        problem = with_floor(problem, problem.throughput * max(compared.chosen.hours / deadline, 1 + 1e-6))


def expected_staleness(problem: Problem, plan: Plan) -> int | None:
    """Return the updates that others make, on average, between the pull and the push of a batch: one for each lane.

    None without a policy.
    """
    policy = problem.conditions.sync if problem.conditions is not None else None
    if policy is None:
        return None
    return 0 if policy.in_rounds or plan.lanes is None else plan.lanes - 1


def within_staleness(problem: Problem, find: Callable[[Problem], PlanComparison]) -> PlanComparison:
    """Find a plan whose expected staleness is within the bound of the conditions, if they have one.

    A stage of k workers has 2 k lanes at least, which bounds the workers of every stage; plans of one stage need no
    more. If the lanes of several stages are still too many, the search is repeated with fewer workers, and what the
    first one proved remains a lower bound.
    """
    from heterps.planning.optimum import with_conditions

    compared = first = find(problem)
    while (now := problem.conditions) is not None and now.max_staleness is not None:
        staleness = expected_staleness(problem, compared.chosen) or 0
        if staleness <= now.max_staleness:
            break
        largest = max(stage.count for stage in compared.chosen.stages)
        fewer = min(largest * (now.max_staleness + 1) // (staleness + 1), largest - 1)
        if fewer < 1:
            raise PlanInfeasible(
                f"no plan was found with a staleness of {now.max_staleness} or less: one worker for each of the "
                f"{len(compared.chosen.stages)} stages has {staleness} already. Allow that, or use --sync bsp."
            )
        problem = with_conditions(problem, replace(now, most_workers=fewer))
        compared = find(problem)
    if compared is first:
        return first
    bound = first.chosen.optimal_usd if first.chosen.optimal_usd is not None else first.chosen.bound_usd
    options = tuple(replace(o, plan=_with_optimum(o.plan, None, bound)) if o.plan else o for o in compared.options)
    return PlanComparison(_with_optimum(compared.chosen, None, bound), options)


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
    if problem.in_rounds and provisioner != "exact":
        raise ConfigError(f"provisioner {provisioner!r} knows no rounds: use exact for sync bsp.")
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
    from heterps.planning.expected import expected
    from heterps.planning.provisioners.base import to_plan

    assert found.schedule is not None
    assert found.counts is not None
    made = to_plan(problem, found.schedule, found.counts, method, provisioner)
    searched = {
        "search_s": found.seconds, "evaluations": found.evaluations, "prediction": expected(problem, made),
    }  # fmt: skip
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
