"""Variants of a planning problem, such as other policies or batch sizes, of which the cheapest plan is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heterps.errors import PlanInfeasible
from heterps.planning.api import PlanComparison, expected_staleness, within_deadline, within_staleness
from heterps.planning.cost import Problem

ANY = "any"
POLICIES = ("bsp", "asp", "ssp:3", "dssp:3:12")
"""The policies that `any` compares."""


def cheapest_variant(
    problems: list[Problem], deadline: float | None, find: Callable[[Problem], PlanComparison]
) -> tuple[Problem, PlanComparison, list[dict[str, Any]]]:
    """Return the variant with the cheapest plan, its plans, and a row about each; PlanInfeasible if none has one.

    Its floor is the one that the deadline asks for, start-up and interruptions included.
    """
    found: list[tuple[Problem, PlanComparison]] = []
    rows: list[dict[str, Any]] = []
    failure: PlanInfeasible | None = None
    for problem in problems:
        policy = problem.conditions.sync.label if problem.conditions and problem.conditions.sync else None
        row: dict[str, Any] = {"sync": policy, "batch_size": problem.profile.batch_size}
        try:
            raised, compared = within_deadline(problem, deadline, lambda one: within_staleness(one, find))
        except PlanInfeasible as error:
            failure = failure or error
            rows.append(row | {"usd": None, "reason": str(error)})
            continue
        plan = compared.chosen
        found.append((raised, compared))
        rows.append(
            row | {"usd": plan.usd, "hours": plan.hours, "throughput": plan.throughput,
                   "staleness": expected_staleness(problem, plan)}
        )  # fmt: skip
    if not found:
        assert failure is not None, "there is at least one variant"
        raise failure
    problem, compared = min(found, key=lambda one: one[1].chosen.usd)
    return problem, compared, rows
