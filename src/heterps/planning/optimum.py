"""Find the cheapest plan of a problem, and of variations of it: other floors, prices and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from heterps.config import Resource
from heterps.planning.cost import Problem
from heterps.planning.plan import Plan
from heterps.planning.provisioners.base import to_plan
from heterps.planning.real import Conditions
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.exact import exact_scheduler

LONGEST_S = 5.0
"""Time limit of one search, after which it returns the best plan so far. Most take milliseconds."""


def cheapest(problem: Problem, seconds: float = LONGEST_S) -> Plan | None:
    """Find the cheapest plan; None if there is none. Its `gap` is 0.0 if that is proven, else it has a `bound_usd`."""
    return find_cheapest(problem, seconds)[0]


def find_cheapest(problem: Problem, seconds: float = LONGEST_S) -> tuple[Plan | None, bool]:
    """Find the cheapest plan or None, and whether it is proven that no plan is cheaper, or that there is none."""
    found = search(problem, exact_scheduler(problem), SearchBudget(seconds=seconds))
    if found.schedule is None or found.counts is None:
        return None, found.bound_usd == math.inf
    plan = to_plan(problem, found.schedule, found.counts, "exact")
    proof = {"optimal_usd": plan.usd, "gap": 0.0} if found.proven else {"bound_usd": found.bound_usd}
    measured = {"search_s": found.seconds, "evaluations": found.evaluations}
    return plan.model_copy(update={**measured, **proof}), found.proven


def with_conditions(problem: Problem, conditions: Conditions) -> Problem:
    return _changed(problem, conditions=conditions)


def with_floor(problem: Problem, throughput: float) -> Problem:
    return _changed(problem, throughput=throughput)


def without_reached(problem: Problem) -> Problem:
    """Return the problem for the slowest station alone, whatever share of its throughput whole runs reached."""
    return _changed(problem, reached=1.0)


def with_resources(problem: Problem, changed: Mapping[str, Resource]) -> Problem:
    """Return the problem with some resources replaced; raises ConfigError if a layer can then run nowhere."""
    cluster = problem.cluster.model_copy(update={"resources": {**problem.cluster.resources, **changed}})
    return _changed(problem, cluster=cluster)


def _changed(problem: Problem, **changed: Any) -> Problem:
    names = ("cluster", "throughput", "samples", "epochs", "conditions", "reached")
    return Problem(**{"profile": problem.given, **{name: getattr(problem, name) for name in names}, **changed})


def with_limits(problem: Problem, limits: Mapping[str, int]) -> Problem:
    """Return the problem with other limits; raises ConfigError if a layer can then run nowhere."""
    known = problem.cluster.resources
    return with_resources(problem, {name: known[name].model_copy(update={"limit": n}) for name, n in limits.items()})
