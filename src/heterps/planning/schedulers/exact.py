"""The exact scheduler: finds the cheapest plan with proof, or with a lower bound on its cost if it is stopped early.

The least rate R(tau) of any plan that needs at most tau seconds per batch is a falling staircase; the optimum is the
least tau * R(tau) below tau_max. Best-first branch and bound over intervals of tau; `best` is the cheapest bill so far:

    rate                                1. look ahead at a few tau, for a good best from the start
     |   ____                           2. take the interval [lo, hi] with the lowest bound; at best: proven
     |   .   |______                    3. R(hi): the cheapest schedule there, billed at its own best counts
     |   .          |__________         4. a faster plan pays at least R(hi), so it is cheaper than best only below
     |   .          .          |           tau * best / (hi * R(hi)): what is above is done
     +---+----------+----------+-> tau  5. what is left is halved, each half with a bound of its own
        lo    cut   .   done   hi

If limits bind so tightly that R(hi) is not found at once, a thin slice at hi is split off the interval, which waits for
more effort with the known bound. A slice that no effort decides is set aside: its bound remains part of the proof.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from heterps.planning.chains import EFFORTS, Chains, Undecided
from heterps.planning.cost import ROUNDING, Problem, Schedules
from heterps.planning.offer_chains import OfferChains
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact

if TYPE_CHECKING:
    from heterps.planning.schedulers.base import Scheduler

LOOK_AHEAD, LOOK_AHEAD_RATIO = 24, 0.8
SCARCITIES = (0.0, 0.03, 0.3, 3.0)
SLICE, THIN = 0.01, 0.001
NARROW = 1.05
CLOSE = 1e-3
"""Relative gap at which a search ends where billing has steps: bounds of narrow intervals rise slowly there."""


class Interval(NamedTuple):
    """An interval of tau: no plan with a tau in [lo, hi] weighs less than `bound`."""

    bound: float
    hi: float
    lo: float
    effort: int = 0  # effort for finding R(hi)


def exact_scheduler(problem: Problem, seed: int = 0) -> Scheduler:
    """Make the scheduler of method `exact` for the policy of the problem."""
    if problem.in_rounds:
        from heterps.planning.schedulers.exact_rounds import ExactRounds

        return ExactRounds(problem, seed)
    return Exact(problem, seed)


class Exact:
    """The scheduler of method `exact` for policies without rounds, and for the paper's bill."""

    def __init__(self, problem: Problem, seed: int) -> None:  # noqa: ARG002 - nothing here is random
        is_free = not (problem.market.offers.usd.any() or problem.pays_egress or problem.disk_usd)
        prices = np.ones_like(problem.prices) if is_free else None
        in_offers = prices is None and not problem.market.linear
        self._chains: Chains | OfferChains = OfferChains(problem) if in_offers else Chains(problem, prices)
        self._problem = problem
        offers = problem.market.offers
        in_steps = bool(offers.step.any() or offers.least.any())
        # Where billing has steps, bounds jump; where traffic is paid for, they grow less than tau.
        self._narrow = 1 + 1e-9 if in_steps or problem.pays_egress else NARROW
        self._close = CLOSE if in_steps else ROUNDING
        self._scale = problem.hours_per_tau
        self._nothing: Schedules = np.empty((0, problem.num_layers), np.int16)
        self._best = np.inf
        self._aside = np.inf
        self._fastest = self._chains.fastest_s()  # grows as intervals turn out to be too fast for the limits
        self._waiting: list[Interval] = []
        self._billed: tuple[Interval, float] | None = None  # the interval whose R(hi) is being billed, and its weight
        if self._fastest <= problem.tau_max:
            self._wait(self._fastest, problem.tau_max, 0.0)
        self._started = False

    def propose(self) -> Schedules | None:
        if not self._waiting or self.bound_usd() >= self._best * self._scale * (1 - ROUNDING):  # [2]
            return None
        if not self._started:
            self._started = True
            return self._look_ahead()
        interval = heapq.heappop(self._waiting)
        if self._is_close(interval.bound):
            self._aside = min(self._aside, interval.bound)
            return self._nothing
        if interval.hi <= self._fastest:
            return self._nothing
        heaviest = self._chains.heaviest(interval.hi)
        try:
            chain = self._chains.least(interval.hi, min(self._best, heaviest), interval.effort)  # [3]
        except Undecided as undecided:
            self._slice(interval, undecided.bound)
            return self._nothing if undecided.schedule is None else undecided.schedule[None]
        if chain.schedule is not None:
            self._billed = interval, chain.weight
            return chain.schedule[None]
        if chain.weight >= heaviest:
            self._fastest = interval.hi  # nothing within the limits is this fast, so nothing is faster
        else:
            self._cut(interval, chain.weight)
        return self._nothing

    def feedback(self, schedules: Schedules, bills: Bills) -> None:  # noqa: ARG002 - see below
        # The search is over exact counts: with the higher bills of another provisioner it would not progress.
        self._best = min(self._best, float(exact(self._problem, schedules).usd.min()) / self._scale)
        if self._billed is not None:
            self._cut(*self._billed)
            self._billed = None

    def bound_usd(self) -> float:
        known = self._waiting[0].bound if self._waiting else np.inf
        known = known if self._billed is None else min(known, self._billed[0].bound)
        return min(self._best, self._aside, known) * self._scale

    def _is_close(self, bound: float) -> bool:
        """Whether plans that cost at least `bound` need no further search."""
        return bound >= self._best * (1 - self._close)

    def _look_ahead(self) -> Schedules:  # [1]
        tau_max = self._waiting[0].hi
        taus = tau_max * LOOK_AHEAD_RATIO ** np.arange(LOOK_AHEAD)
        schedules = [
            self._chains.unlimited(float(tau), scarcity)
            for tau in taus
            if tau >= self._fastest
            for scarcity in SCARCITIES
        ]
        found = [schedule for schedule in schedules if schedule is not None]
        return np.unique(found, axis=0) if found else self._nothing

    def _cut(self, interval: Interval, weight: float) -> None:  # [4]
        """Cut the interval, given that no plan with the units of a tau up to interval.hi weighs less there."""
        hi = self._problem.slower_s(interval.hi, self._best / weight if weight > 0 else 1.0) * (1 - ROUNDING)
        lo = max(interval.lo, self._fastest)
        if hi < lo:
            return
        middle = math.sqrt(lo * hi) if hi > lo * self._narrow else lo
        for low, high in ((lo, middle), (middle, hi)) if middle > lo else ((lo, hi),):  # [5]
            self._wait(low, high, max(interval.bound, weight * self._problem.growth(low, interval.hi)))

    def _slice(self, interval: Interval, bound: float) -> None:
        """Split off a slice at hi: R(hi) is unknown, but no plan up to hi has a rate below bound / hi."""
        last = interval.effort + 1 == EFFORTS
        lo = max(interval.hi * (1 - (THIN if last else SLICE)), interval.lo)
        slower = bound * self._problem.growth(lo, interval.hi)
        sure = max(interval.bound, slower)
        if last:
            self._aside = min(self._aside, max(sure, self._chains.bound(lo, interval.hi, self._best)))
        else:
            self._wait(lo, interval.hi, sure, interval.effort + 1)
        if lo > interval.lo:
            self._cut(interval._replace(hi=lo), slower)

    def _wait(self, lo: float, hi: float, bound: float, effort: int = 0) -> None:
        bound = max(bound, self._chains.bound(lo, hi, self._best))
        if self._is_close(bound):
            self._aside = min(self._aside, bound)
        else:
            heapq.heappush(self._waiting, Interval(bound, hi, lo, effort))
