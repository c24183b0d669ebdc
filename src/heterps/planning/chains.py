"""The cheapest schedule for a given tau, limits and servers included: the heart of the exact scheduler.

    least(tau)  1. the servers take their least count from the limit of their resource
                2. lightest chain of stages at prices + multipliers: a lower bound whatever the multipliers (Lagrange)
                3. heavier than the cutoff: done. Within the limits and nothing paid to multipliers: it is the cheapest
                4. otherwise raise the multipliers where units exceed a limit, lower them where units are left; again
                5. still a gap: labels, which carry the units used, cut off by the bound of the best multipliers

`weight` is tau * rate throughout: a bill in USD but for the constant Problem.hours_per_tau.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps.planning import kernels
from heterps.planning.cost import ROUNDING, Floats, Ints, Problem, Schedules

MOST_LABELS = 1 << 16
PATIENCE, LEAST_STEP = 4, 0.05
SLACK, FAR = 1.01, 1.25
"""How far above the cutoff a chain must weigh to be given up (each bound then earns a step in tau), and is sought."""


class Undecided(Exception):
    """The search needs more labels than it may make. `schedule` keeps the limits, if one that does was seen."""

    def __init__(self, schedule: Schedules | None) -> None:
        self.schedule = schedule


@dataclass(frozen=True)
class Chain:
    """The answer for one tau: the weight of the cheapest schedule, or a bound on it where there is no schedule."""

    weight: float
    schedule: Schedules | None = None


class Chains:
    """Finds the cheapest chains of stages for one problem, at its own or at other prices and limits."""

    def __init__(self, problem: Problem, prices: Floats | None = None, limits: Ints | None = None) -> None:
        self.terms = problem.terms
        self.prices = problem.prices if prices is None else prices
        self.limits = problem.limits if limits is None else limits
        self.server, self.server_s = problem.server, problem.server_s
        num_resources, num_layers = self.terms.shape[:2]
        self.multipliers = np.zeros(num_resources)
        table = (num_layers + 1, num_resources)
        self._to_go, self._others = np.empty(table), np.empty(table)
        self._last, self._follow = np.zeros(table, np.int64), np.zeros(table, np.int64)
        self._tracked = np.zeros(num_resources, np.bool_)  # the limits that have ever been exceeded
        self._capacity = 1 << 12

    def fastest_s(self) -> float:
        """Above 0, and no schedule has a smaller tau; infinite when servers are needed and cannot be rented."""
        if self.server_s > 0 and (self.server < 0 or self.limits[self.server] < 1):
            return np.inf
        p, a, q, d = (self.terms[:, :, i] for i in range(4))
        units = np.maximum(self.limits, 1)[:, None]
        busy = np.where(self.limits[:, None] > 0, np.maximum(a + p / units, d + q / units), np.inf)
        servers = self.server_s / self.limits[self.server] if self.server_s > 0 else 0.0
        return float(max(busy.min(axis=0).max(), servers))

    def heaviest(self, tau: float) -> float:
        """Above the weight of any plan with this tau."""
        return tau * float(self.prices @ self.limits) * (1 + 1e-9)

    def bound(self, lo: float, hi: float, cutoff: float) -> float:
        """No plan with a tau in [lo, hi] weighs less than this, which is never more than the cutoff."""
        free, servers = self._servers(lo, hi)
        return (
            self._lightest(lo, hi, free, self.multipliers, cutoff - servers) + servers if free is not None else cutoff
        )

    def unlimited(self, tau: float, scarcity: float) -> Schedules | None:
        """The cheapest schedule that is done in tau if limits held for each station alone, not for their sum.

        Above 0, `scarcity` adds to the prices what makes rare resources dear, so that the sums are kept more often.
        """
        free, _ = self._servers(tau, tau)
        dear = scarcity * float(self.prices @ self.limits) / self.limits / len(self.limits)
        if free is None or self._lightest(tau, tau, free, dear, np.inf) == np.inf:
            return None
        return self._read(tau, free)[0]

    def least(self, tau: float, cutoff: float) -> Chain:
        """The cheapest schedule that is done in tau, unless clearly heavier than the cutoff. Raises Undecided."""
        free, servers = self._servers(tau, tau)  # [1]
        if free is None:
            return Chain(np.inf)
        goal = cutoff * SLACK
        ascent = Ascent(self.multipliers)
        feasible = Chain(goal)
        while ascent.step > LEAST_STEP:
            self.multipliers = ascent.at
            weight = self._lightest(tau, tau, free, ascent.at, cutoff * FAR - servers) + servers  # [2]
            if weight >= feasible.weight * (1 - ROUNDING):  # [3]
                return feasible if feasible.schedule is not None else Chain(weight)
            schedule, units = self._read(tau, free)
            over = units - free
            self._tracked |= over > 0
            if (over <= 0).all():
                paid = tau * float(self.prices @ units) + servers
                if paid < feasible.weight:
                    feasible = Chain(paid, schedule)
                if not (ascent.at * over).any():
                    return feasible
            ascent.move(weight / tau, over, feasible.weight / tau)  # [4]
        self.multipliers = ascent.best_at
        return self._by_labels(tau, feasible, free, servers)  # [5]

    def _servers(self, lo: float, hi: float) -> tuple[Ints | None, float]:
        """The units left of each resource, or None when the servers need too many, and the weight of the servers."""
        if self.server_s == 0:
            return self.limits, 0.0
        limit = int(self.limits[self.server]) if self.server >= 0 else 0
        count = kernels.least_count(self.server_s, 0.0, 0.0, 0.0, hi, limit)
        if count > limit:
            return None, np.inf
        free = self.limits.copy()
        free[self.server] -= count
        return free, float(self.prices[self.server]) * max(lo * count, self.server_s)

    def _lightest(self, lo: float, hi: float, free: Ints, multipliers: Floats, cutoff: float) -> float:
        refund = hi * float(multipliers @ free)
        weight = kernels.lightest_chain(
            self.terms, self.prices + multipliers, free, lo, hi, cutoff + refund,
            self._to_go, self._others, self._last, self._follow,
        )  # fmt: skip
        return float(weight) - refund

    def _read(self, tau: float, free: Ints) -> tuple[Schedules, Ints]:
        schedule = np.empty(self.terms.shape[1], np.int16)
        units = np.empty(len(free), np.int64)
        kernels.read_chain(self.terms, free, tau, self._to_go, self._last, self._follow, schedule, units)
        return schedule, units

    def _by_labels(self, tau: float, known: Chain, free: Ints, servers: float) -> Chain:
        """The cheapest chain if it is lighter than the known one, else that."""
        self._lightest(tau, tau, free, self.multipliers, np.inf)
        room = known.weight - servers + tau * float(self.multipliers @ free)
        while True:
            tracked = np.flatnonzero(self._tracked | (self.multipliers > 0))
            labels = self._make_labels(tau, room, free, tracked)
            if labels is None:
                raise Undecided(known.schedule)
            label = labels.lightest()
            if label < 0 or labels.weight[label] + servers >= known.weight:
                return known
            over = labels.units[label] > free
            if not over.any():
                return Chain(float(labels.weight[label]) + servers, labels.schedule(label))
            self._tracked |= over

    def _make_labels(self, tau: float, cutoff: float, free: Ints, tracked: Ints) -> Labels | None:
        num_resources, num_layers = self.terms.shape[:2]
        while True:
            labels = Labels(self._capacity, num_layers, num_resources)
            if kernels.extend_labels(
                self.terms, self.prices, self.multipliers, free, tracked, tau, cutoff, self._others,
                labels.units, labels.weight, labels.chain, labels.after, labels.heads,
            ):  # fmt: skip
                return labels
            if self._capacity >= MOST_LABELS:
                return None
            self._capacity *= 4


class Ascent:
    """Climbs to the multipliers with the highest bound, by Polyak's steps along the units over and under the limits.

    The step is halved, back at the best, when several moves in a row do not close a hundredth of the gap to a ceiling.
    """

    def __init__(self, start: Floats) -> None:
        self.at = self.best_at = start
        self.best = -np.inf
        self.step = 1.0
        self._best_over = np.zeros(0, np.int64)
        self._patience = PATIENCE

    def move(self, bound: float, over: Ints, ceiling: float) -> None:
        """Goes on from `at`, which gave this bound; the best bound is below the ceiling."""
        self._patience = PATIENCE if bound - self.best > 0.01 * (ceiling - bound) else self._patience - 1
        if bound > self.best:
            self.best, self.best_at, self._best_over = bound, self.at, over
        if self._patience == 0:
            self.step /= 2
            self._patience = PATIENCE
            self.at, bound, over = self.best_at, self.best, self._best_over
        target = min(ceiling, self.best * 1.05) if self.best > 0 else ceiling
        self.at = np.maximum(self.at + self.step * (target - bound) / float(over @ over) * over, 0.0)


class Labels:
    """The arrays of kernels.extend_labels."""

    def __init__(self, capacity: int, num_layers: int, num_resources: int) -> None:
        self.units = np.empty((capacity, num_resources), np.int64)
        self.weight = np.empty(capacity)
        self.chain = np.empty((capacity, 3), np.int64)
        self.after = np.empty(capacity, np.int64)
        self.heads = np.empty((num_layers + 1, num_resources + 1), np.int64)

    def lightest(self) -> int:
        """The lightest label over all layers, -1 when there is none."""
        best = -1
        for label in self.heads[-1].tolist():
            while label >= 0:
                if best < 0 or self.weight[label] < self.weight[best]:
                    best = label
                label = int(self.after[label])
        return best

    def schedule(self, label: int) -> Schedules:
        end = len(self.heads) - 1
        schedule = np.empty(end, np.int16)
        while label > 0:
            label, first, resource = self.chain[label].tolist()
            schedule[first:end] = resource
            end = first
        return schedule
