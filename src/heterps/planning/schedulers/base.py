"""What a scheduler is, and the one loop that runs every scheduler.

       propose            provision             feedback
    [n, N] schedules  -->  n bills  -->  scheduler learns  --> again, until it is done or the budget is spent

The loop keeps the cheapest plan seen and the search trace, so methods can be compared evaluation by evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from heterps.planning import chain_kernels, kernels
from heterps.planning.cost import Ints, Problem, Schedules
from heterps.planning.provisioners.base import Bills, Provisioner
from heterps.planning.provisioners.exact import exact


class Scheduler(Protocol):
    """Proposes schedules and learns from their bills. Made with (problem, seed); the same seed proposes the same."""

    def propose(self) -> Schedules | None:
        """The next schedules [n, N] to bill; n may be 0 while it still thinks; None when it is done."""

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        """What the proposed schedules cost; infinite USD where the floor cannot be met within the limits."""

    def bound_usd(self) -> float:
        """No plan is cheaper: proven so far. 0 for a method that proves nothing."""


class Unproven:
    """A scheduler that proves nothing."""

    def bound_usd(self) -> float:
        return 0.0


@dataclass(frozen=True)
class SearchBudget:
    """When to stop a scheduler that is not done by itself."""

    evaluations: int | None = None
    seconds: float | None = None

    def spent(self, evaluations: int, seconds: float) -> bool:
        return (self.evaluations is not None and evaluations >= self.evaluations) or (
            self.seconds is not None and seconds >= self.seconds
        )


@dataclass(frozen=True)
class TracePoint:
    """The cheapest plan so far became this cheap, after so many evaluations and seconds."""

    evaluations: int
    seconds: float
    usd: float


@dataclass(frozen=True)
class Search:
    """The outcome of a search: the cheapest schedule [N] with its counts [N + 1], or None, and how it was found."""

    schedule: Schedules | None
    counts: Ints | None
    usd: float
    bound_usd: float
    evaluations: int
    seconds: float
    finished: bool  # by itself, not by its budget
    trace: tuple[TracePoint, ...]

    @property
    def proven(self) -> bool:
        """Whether no plan is cheaper."""
        return self.schedule is not None and self.bound_usd >= self.usd * (1 - 1e-9)


def search(
    problem: Problem,
    scheduler: Scheduler,
    budget: SearchBudget,
    provisioner: Provisioner = exact,
    clock: Callable[[], float] = time.perf_counter,
) -> Search:
    """Runs `scheduler` until it is done or the budget is spent. A scheduler that learns can be searched with again: by
    the cost model first, then with a `provisioner` that measures trials.
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
        cheapest = int(np.argmin(bills.usd))
        if bills.usd[cheapest] < best:
            best, schedule, counts = (
                float(bills.usd[cheapest]),
                schedules[cheapest].copy(),
                bills.counts[cheapest].copy(),
            )
            trace.append(TracePoint(evaluations, clock() - start, best))
        scheduler.feedback(schedules, bills)
    bound_usd = min(scheduler.bound_usd(), best)
    return Search(schedule, counts, best, bound_usd, evaluations, clock() - start, finished, tuple(trace))
