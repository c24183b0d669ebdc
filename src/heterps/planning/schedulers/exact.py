"""The exact scheduler: the cheapest plan, with proof.

The least rate R(tau) of any plan that needs at most tau seconds a batch is a falling staircase, and the optimum is the
least tau * R(tau) below tau_max. Walk tau downwards; `best` is the weight of the cheapest plan billed so far:

    rate
     |    ____                       1. look ahead at a few tau, for a good best from the start
     |    .   |______                2. a bound on the whole of [lo, tau] reaches the best: skip it
     |    .          |__________     3. otherwise R(tau): the cheapest schedule there, billed at its own best counts
     |    .          .          |    4. a faster plan pays at least R(tau), so it is cheaper only below best / R(tau)
     +----+----------+----------+->  5. below the fastest tau there is nothing: what was found is the optimum
       fastest <---  tau    tau_max

Where limits bind so hard that R(tau) cannot be decided, the interval is passed with the bound of step 2 kept: the plan
is then proven up to that bound.
"""

from __future__ import annotations

import numpy as np

from heterps.planning.chains import Chains, Undecided
from heterps.planning.cost import ROUNDING, Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.provisioners.exact import exact

LOOK_AHEAD, LOOK_AHEAD_RATIO = 24, 0.8
NARROWEST, UNDECIDED_WIDTH = 1e-3, 1e-2
SCARCITIES = (0.0, 0.03, 0.3, 3.0)


class Exact:
    def __init__(self, problem: Problem, seed: int) -> None:  # noqa: ARG002 - nothing here is random
        prices = problem.prices if problem.prices.any() else np.ones_like(problem.prices)
        self._chains = Chains(problem, prices)
        self._rarest: Chains | None = Chains(problem, prices=1.0 / problem.limits)
        self._problem = problem
        self._scale = problem.hours_per_tau
        self._nothing: Schedules = np.empty((0, problem.num_layers), np.int16)
        self._tau = problem.tau_max
        self._fastest = self._chains.fastest_s()
        self._best = np.inf
        self._weight = np.inf  # tau * R(tau) of the schedule that waits for its bill
        self._undecided = np.inf
        self._width = 0.1
        self._started = False

    def propose(self) -> Schedules | None:
        if self._tau < self._fastest or self._best == 0:  # [5]
            return None
        if not self._started:
            self._started = True
            return self._look_ahead()
        if self._best == np.inf and self._rarest is not None:
            return self._keep_limits(self._rarest)
        lo = max(self._tau * (1 - self._width), self._fastest)
        heaviest = self._chains.heaviest(self._tau)
        cutoff = min(self._best, heaviest)
        bound = self._chains.bound(lo, self._tau, cutoff)
        if bound >= cutoff * (1 - ROUNDING):  # [2]
            return self._pass(lo)
        self._width = max(self._width / 2, NARROWEST)
        try:
            chain = self._chains.least(self._tau, cutoff)  # [3]
        except Undecided as undecided:
            lo = max(self._tau * (1 - UNDECIDED_WIDTH), self._fastest)
            self._undecided = min(self._undecided, self._chains.bound(lo, self._tau, cutoff))
            nothing = self._pass(lo)
            return nothing if undecided.schedule is None else undecided.schedule[None]
        if chain.schedule is not None:
            self._weight = chain.weight
            return chain.schedule[None]
        if chain.weight >= heaviest:
            self._tau = 0.0  # nothing within the limits is this fast, so nothing is faster
        else:
            self._step_below(chain.weight)
        return self._nothing

    def feedback(self, schedules: Schedules, bills: Bills) -> None:  # noqa: ARG002 - see below
        # The walk is over exact counts: by the dearer bills of another provisioner it would stand still.
        self._best = min(self._best, float(exact(self._problem, schedules).usd.min()) / self._scale)
        if self._weight < np.inf:
            self._step_below(self._weight)
            self._weight = np.inf

    def bound_usd(self) -> float:
        bound = min(self._best, self._undecided)
        hi = self._tau
        while hi >= self._fastest and self._best < np.inf:
            lo = max(hi * 0.99, self._fastest)
            bound = min(bound, self._chains.bound(lo, hi, self._best))
            hi = lo * (1 - ROUNDING)
        return bound * self._scale

    def _look_ahead(self) -> Schedules:  # [1]
        taus = self._tau * LOOK_AHEAD_RATIO ** np.arange(LOOK_AHEAD)
        schedules = [
            self._chains.unlimited(float(tau), scarcity)
            for tau in taus
            if tau >= self._fastest
            for scarcity in SCARCITIES
        ]
        found = [schedule for schedule in schedules if schedule is not None]
        return np.unique(found, axis=0) if found else self._nothing

    def _keep_limits(self, rarest: Chains) -> Schedules:
        """Where none of those keeps the limits: the schedule with the least share of them, whatever it costs."""
        self._rarest = None
        try:
            schedule = rarest.least(self._tau, rarest.heaviest(self._tau)).schedule
        except Undecided as undecided:
            return self._nothing if undecided.schedule is None else undecided.schedule[None]
        if schedule is None:
            self._tau = 0.0
            return self._nothing
        return schedule[None]

    def _pass(self, lo: float) -> Schedules:
        self._tau = lo * (1 - ROUNDING)
        self._width = min(self._width * 3, 0.5)
        return self._nothing

    def _step_below(self, weight: float) -> None:  # [4]
        self._tau *= (self._best / weight if weight > self._best else 1.0) * (1 - ROUNDING)
