"""Variants of a planning problem: several policies or batch sizes, of which the cheapest plan is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from heterps.errors import ConfigError, PlanInfeasible

if TYPE_CHECKING:
    from heterps.config import Cluster
    from heterps.planning import PlanComparison
    from heterps.planning.cost import Problem
    from heterps.profiling.profile import Profile

POLICIES = ("bsp", "asp", "ssp:3", "dssp:3:12")
"""The policies that `--sync any` compares."""


def variants(
    profile: Profile,
    cluster: Cluster,
    throughput: float | None,
    samples: float,
    epochs: float,
    *,
    batch_sizes: str | None,
    sync: str | None,
    cost: str,
    rows: float | None,
    rows_in_memory: float | None,
    deadline: float | None,
    lanes: str | None,
    max_staleness: int | None = None,
) -> list[Problem]:
    """Make a problem for each policy and batch size that was asked for. Raises ConfigError."""
    from heterps.planning.api import CostModel, make_problem

    if cost not in get_args(CostModel):
        raise ConfigError(f"--cost {cost}: it is one of {', '.join(get_args(CostModel))}.")
    if lanes is not None and sync not in ("bsp", "any"):
        raise ConfigError("--lanes is for --sync bsp: other policies take whole batches.")
    sizes = _whole_numbers("--batch-size", batch_sizes) or [profile.batch_size]
    policies: tuple[str | None, ...] = POLICIES if sync == "any" else (sync,)
    asked: dict[str, Any] = {
        "cost": cost, "rows": rows, "rows_in_memory": rows_in_memory, "deadline": deadline,
        "max_staleness": max_staleness,
    }  # fmt: skip
    return [
        make_problem(
            profile if size == profile.batch_size else profile.at_batch_size(size), cluster, throughput, samples,
            epochs, sync=policy, lanes=_whole_numbers("--lanes", lanes) if policy == "bsp" else None, **asked,
        )
        for policy in policies
        for size in sizes
    ]  # fmt: skip


def cheapest_variant(
    problems: list[Problem], deadline: float | None, find: Callable[[Problem], PlanComparison]
) -> tuple[Problem, PlanComparison, list[dict[str, Any]]]:
    """Return the variant with the cheapest plan, its plans, and a row about each; PlanInfeasible if none has one."""
    from heterps.planning.api import expected_staleness, within_deadline, within_staleness

    found: list[tuple[Problem, PlanComparison]] = []
    rows: list[dict[str, Any]] = []
    failure: PlanInfeasible | None = None
    for problem in problems:
        policy = problem.conditions.sync.label if problem.conditions and problem.conditions.sync else None
        row: dict[str, Any] = {"sync": policy, "batch_size": problem.profile.batch_size}
        try:
            compared = within_deadline(problem, deadline, lambda one: within_staleness(one, find))
        except PlanInfeasible as error:
            failure = failure or error
            rows.append(row | {"usd": None, "reason": str(error)})
            continue
        plan = compared.chosen
        found.append((problem, compared))
        rows.append(
            row | {"usd": plan.usd, "hours": plan.hours, "throughput": plan.throughput,
                   "staleness": expected_staleness(problem, plan)}
        )  # fmt: skip
    if not found:
        assert failure is not None, "there is at least one variant"
        raise failure
    problem, compared = min(found, key=lambda one: one[1].chosen.usd)
    return problem, compared, rows


def _whole_numbers(option: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: write whole numbers with commas between them, such as 4,8,16.") from None
    if min(numbers) < 1:
        what = "a batch has at least one sample" if option == "--batch-size" else "numbers must be at least 1"
        raise ConfigError(f"{option} {text}: {what}.")
    return numbers
