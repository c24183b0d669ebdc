"""The contract of schedulers, and the loop that runs every scheduler.

       propose            provision             feedback
    [n, N] schedules  -->  n bills  -->  scheduler learns  --> again, until it is done or the budget is spent

The loop keeps the cheapest plan and the search trace, so that methods can be compared evaluation by evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from heterps.planning import chain_kernels, kernels
from heterps.planning.cost import Ints, Problem, Schedules, runs
from heterps.planning.lanes import kept_full
from heterps.planning.provisioners.base import Bills, Provisioner, to_plan
from heterps.planning.provisioners.exact import exact


class Scheduler(Protocol):
    """Proposes schedules and learns from their bills. It is made with (problem, seed) and is deterministic."""

    def propose(self) -> Schedules | None:
        """Return the next schedules [n, N] to bill; n may be 0 if it needs another call; None when it is done."""

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        """Learn the bills of the proposed schedules; USD are infinite if the floor cannot be met within the limits."""

    def bound_usd(self) -> float:
        """Lower bound on the cost of all plans, as far as it is proven; 0 for a method that proves nothing."""


class Unproven:
    """Base of schedulers that prove no bound."""

    def bound_usd(self) -> float:
        return 0.0


class OneProposal(Unproven):
    """Base of schedulers that propose all their schedules at once, and learn nothing from the bills."""

    def __init__(self, schedules: Schedules) -> None:
        self._schedules: Schedules | None = schedules

    def propose(self) -> Schedules | None:
        return self._schedules

    def feedback(self, schedules: Schedules, bills: Bills) -> None:  # noqa: ARG002 - there is nothing to learn
        self._schedules = None


@dataclass(frozen=True)
class SearchBudget:
    """Limits of a search, in evaluations and in seconds; None means no limit."""

    evaluations: int | None = None
    seconds: float | None = None

    def spent(self, evaluations: int, seconds: float) -> bool:
        return (self.evaluations is not None and evaluations >= self.evaluations) or (
            self.seconds is not None and seconds >= self.seconds
        )


@dataclass(frozen=True)
class TracePoint:
    """An improvement during a search: the cost of the cheapest plan after these evaluations and seconds."""

    evaluations: int
    seconds: float
    usd: float


@dataclass(frozen=True)
class Search:
    """The result of a search: the cheapest schedule [N] with its counts [N + 1], or None, and the search's effort."""

    schedule: Schedules | None
    counts: Ints | None
    usd: float
    bound_usd: float
    evaluations: int
    seconds: float
    finished: bool  # whether the scheduler ended by itself, not by its budget
    trace: tuple[TracePoint, ...]

    @property
    def proven(self) -> bool:
        """Whether it is proven that no plan is cheaper."""
        return self.schedule is not None and self.bound_usd >= self.usd * (1 - 1e-9)


def _cheapest(
    problem: Problem, schedules: Schedules, bills: Bills, below: float
) -> tuple[float, Schedules, Ints] | None:
    """Return the cheapest bill below `below` of a plan that can be kept full, its schedule and counts; None: none."""
    found = None
    for at in np.argsort(bills.usd, kind="stable"):
        if not bills.usd[at] < below:
            break
        counts, usd = kept_full(problem, runs(schedules[at].tolist()), bills.counts[at].tolist()), float(bills.usd[at])
        if counts is not None and counts != bills.counts[at].tolist():
            usd = to_plan(problem, schedules[at], np.array(counts), "").usd
        if counts is not None and usd < below:
            found, below = (usd, schedules[at].copy(), np.array(counts)), usd
    return found


def search(
    problem: Problem,
    scheduler: Scheduler,
    budget: SearchBudget,
    provisioner: Provisioner = exact,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """Run `scheduler` until it is done or the budget is spent.

    A scheduler that learns can be used for another search: first by the cost model, then with a `provisioner` that
    measures trials.
    """
    kernels.compile_all()
    chain_kernels.compile_all()
    start = clock()
    best, schedule, counts = np.inf, None, None
    evaluations = 0
    finished = False
    trace: list[TracePoint] = []
    while not budget.spent(evaluations, clock() - start):
        schedules = scheduler.propose()
        if schedules is None:
            finished = True
            break
        if len(schedules) == 0:
            continue
        if budget.evaluations is not None:
            schedules = schedules[: budget.evaluations - evaluations]
        bills = provisioner(problem, schedules)
        evaluations += len(schedules)
        if (cheapest := _cheapest(problem, schedules, bills, best)) is not None:
            best, schedule, counts = cheapest
            trace.append(TracePoint(evaluations, clock() - start, best))
        scheduler.feedback(schedules, bills)
    if schedule is None and problem.holds_whole_batches:  # one stage may have the memory that several lack
        alone = np.arange(len(problem.resources), dtype=np.int16)[:, None].repeat(problem.num_layers, axis=1)
        if (cheapest := _cheapest(problem, alone, provisioner(problem, alone), best)) is not None:
            best, schedule, counts = cheapest
    bound_usd = min(scheduler.bound_usd(), best)
    return Search(schedule, counts, best, bound_usd, evaluations, clock() - start, finished, tuple(trace))
