"""Find the cheapest schedule for a given tau, with limits and servers: the core of the exact scheduler.

    least(tau)  1. the servers take their least count from the limit of their resource
                2. lightest chain of stages at prices + multipliers: a lower bound whatever the multipliers (Lagrange)
                3. heavier than the cutoff: done. Within the limits and nothing paid to multipliers: it is the cheapest
                4. otherwise labels, which carry the units used; few suffice for most problems
                5. still undecided: the multipliers with the highest bound, then more labels, which that bound prunes

`weight` is tau * rate throughout: a bill in USD, divided by the constant Problem.hours_per_tau.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps.planning import chain_kernels as kernels
from heterps.planning.cost import ROUNDING, Floats, Ints, KernelInputs, Problem, Schedules
from heterps.planning.kernels import least_count

LABELS = (12, 48, 192)
"""Largest number of labels per state, by effort."""
SMALL = 200
"""Number of states up to which labels are faster than multipliers."""
EFFORTS = len(LABELS)
MOST_COLUMNS, NEAR = 60, 1e-4
"""Largest number of chains made to find the multipliers, and the relative gap to the best bound at which to stop."""
SLACK = 1.01
"""A chain is given up if it weighs more than this times the cutoff; each such bound allows a step in tau."""


class Undecided(Exception):
    """The cheapest schedule was not proven. `schedule` is the best found, or None; none weighs less than `bound`."""

    def __init__(self, schedule: Schedules | None, bound: float) -> None:
        self.schedule = schedule
        self.bound = bound


@dataclass(frozen=True)
class Chain:
    """The result for one tau: the cheapest schedule and its weight, or without a schedule a bound on the weight."""

    weight: float
    schedule: Schedules | None = None


class Chains:
    """Finds the cheapest chains of stages for one problem, at its own or other prices and limits."""

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
        self._columns: list[Schedules] = []  # the chains that determined the current multipliers

    def fastest_s(self) -> float:
        """Lower bound on tau, in seconds, above 0; infinite if servers are needed and cannot be rented."""
        if self.server_s > 0 and (self.server < 0 or self.limits[self.server] < 1):
            return np.inf
        p, a, q, d = (self.terms[:, :, i] for i in range(4))
        units = np.maximum(self.limits, 1)[:, None]
        busy = np.where(self.limits[:, None] > 0, np.maximum(a + p / units, d + q / units), np.inf)
        servers = self.server_s / self.limits[self.server] if self.server_s > 0 else 0.0
        return float(max(busy.min(axis=0).max(), servers))

    def heaviest(self, tau: float) -> float:
        """Upper bound on the weight of all plans with this tau."""
        return tau * float(self.prices @ self.limits) * (1 + 1e-9)

    def bound(self, lo: float, hi: float, cutoff: float) -> float:
        """Lower bound on the weight of plans with a tau in [lo, hi]; at most the cutoff."""
        free, servers = self._servers(lo, hi)
        return (
            self._lightest(lo, hi, free, self.multipliers, cutoff - servers) + servers if free is not None else cutoff
        )

    def unlimited(self, tau: float, scarcity: float) -> Schedules | None:
        """Find the cheapest schedule for tau if limits apply to each station alone, not to their sum.

        A `scarcity` above 0 raises the prices of rare resources, so that sums exceed limits less often.
        """
        free, _ = self._servers(tau, tau)
        dear = scarcity * float(self.prices @ self.limits) / self.limits / len(self.limits)
        if free is None:
            return None
        self._lightest(tau, tau, free, dear, np.inf)
        return self._read()

    def least(self, tau: float, cutoff: float, effort: int = EFFORTS - 1) -> Chain:
        """Find the cheapest schedule for tau, unless it is clearly heavier than the cutoff.

        Raises Undecided if it cannot be proven with this `effort`, 0 to EFFORTS - 1.
        """
        free, servers = self._servers(tau, tau)  # [1]
        if free is None:
            return Chain(np.inf)
        best = Chain(cutoff * SLACK)
        bound = self._lightest(tau, tau, free, self.multipliers, best.weight - servers) + servers  # [2]
        schedule = self._read()
        if schedule is None or bound >= best.weight:  # [3]
            return best
        units = self._units(schedule, tau)
        self._tracked |= units > free
        if not (self.multipliers * (units - free)).any() and (units <= free).all():
            return Chain(bound, schedule)
        if self._others.size <= SMALL:  # [4]
            best, missed = self._by_labels(tau, best, free, servers, LABELS[0])
            bound = max(bound, min(missed, best.weight))
        if bound < best.weight * (1 - ROUNDING):  # [5]
            bound = max(bound, self._raise_bound(tau, best.weight, free, servers))
        for width in LABELS[: effort + 1]:
            if bound >= best.weight * (1 - ROUNDING):
                return best
            best, missed = self._by_labels(tau, best, free, servers, width)
            bound = max(bound, min(missed, best.weight))
        if bound >= best.weight * (1 - ROUNDING):
            return best
        raise Undecided(best.schedule, bound)

    def _servers(self, lo: float, hi: float) -> tuple[Ints | None, float]:
        """Return the units of each resource that the servers leave, or None if they need too many, and their weight."""
        if self.server_s == 0:
            return self.limits, 0.0
        limit = int(self.limits[self.server]) if self.server >= 0 else 0
        count = least_count(self.server_s, 0.0, 0.0, 0.0, hi, limit)
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

    def _read(self) -> Schedules | None:
        """Read the schedule of the lightest chain; None if there is none below the cutoff."""
        if self._to_go[0].min() == np.inf:
            return None
        schedule = np.empty(self.terms.shape[1], np.int16)
        kernels.read_chain(self._to_go, self._last, self._follow, schedule)
        return schedule

    def _units(self, schedule: Schedules, tau: float) -> Ints:
        units = np.empty(len(self.limits), np.int64)
        stages = KernelInputs(self.terms, self.prices, self.limits, server=-1, server_s=0.0, tau_max=tau)
        kernels.count_units(stages, schedule, units)
        return units

    def _raise_bound(self, tau: float, ceiling: float, free: Ints, servers: float) -> float:
        """Set the multipliers to those with the highest bound, or with one at the ceiling, and return the bound.

        Kelley's cutting planes: each chain limits the bound, linearly in the multipliers; the next chain is the
        lightest one at the multipliers where the lowest of these limits is highest. (The dual has them as columns.)
        """
        from scipy.optimize import linprog

        columns = [(schedule, self._units(schedule, tau)) for schedule in self._columns]
        highest, best = -np.inf, self.multipliers
        for _ in range(MOST_COLUMNS):
            units = np.array([free, *(used for _, used in columns)])
            rates = np.array([(ceiling - servers) / tau, *(float(self.prices @ used) for _, used in columns)])
            mixed = linprog(rates, units.T, free, np.ones((1, len(rates))), [1.0], method="highs-ds")
            multipliers = np.maximum(-mixed.ineqlin.marginals, 0.0)
            bound = self._lightest(tau, tau, free, multipliers, np.inf) + servers
            if bound > highest:
                highest, best = bound, multipliers
            if highest >= (mixed.fun * tau + servers) * (1 - NEAR):
                break
            schedule = self._read()
            assert schedule is not None, "without a cutoff there is a chain: one was found before"
            columns.append((schedule, self._units(schedule, tau)))
        self.multipliers = best
        self._columns = [schedule for (schedule, _), share in zip(columns, mixed.x[1:], strict=False) if share > 0]
        return min(highest, ceiling)

    def _by_labels(self, tau: float, known: Chain, free: Ints, servers: float, width: int) -> tuple[Chain, float]:
        """Return the lighter of the known chain and the best that labels find, and a bound on the weight of others."""
        self._lightest(tau, tau, free, self.multipliers, np.inf)
        refund = tau * float(self.multipliers @ free)
        while True:
            tracked = np.flatnonzero(self._tracked | (self.multipliers > 0))
            labels = Labels(width, *self._others.shape)
            missed = servers - refund + kernels.extend_labels(
                self.terms, self.prices, self.multipliers, free, tracked, tau, known.weight - servers + refund,
                self._others, labels.weight, labels.bound, labels.units, labels.before, labels.num,
            )  # fmt: skip
            label = labels.lightest()
            if label < 0 or labels.weight[label] + servers >= known.weight:
                return known, missed
            over = labels.units[label] > free
            if not over.any():
                return Chain(float(labels.weight[label]) + servers, labels.schedule(label)), missed
            self._tracked |= over


class Labels:
    """The arrays of chain_kernels.extend_labels."""

    def __init__(self, width: int, num_borders: int, num_resources: int) -> None:
        self._slots = width + 1
        total = num_borders * num_resources * self._slots
        self.weight, self.bound = np.empty(total), np.empty(total)
        self.units = np.empty((total, num_resources), np.int64)
        self.before = np.empty(total, np.int64)
        self.num = np.empty((num_borders, num_resources), np.int64)

    def lightest(self) -> int:
        """Index of the lightest label that covers all layers; -1 if there is none."""
        end = (len(self.num) - 1) * self.num.shape[1]
        labels = [
            label
            for t, num in enumerate(self.num[-1].tolist())
            for label in range((end + t) * self._slots, (end + t) * self._slots + num)
        ]
        return min(labels, key=lambda label: float(self.weight[label]), default=-1)

    def schedule(self, label: int) -> Schedules:
        num_resources = self.num.shape[1]
        schedule = np.empty(len(self.num) - 1, np.int16)
        while (before := int(self.before[label])) >= 0:
            end, resource = divmod(label // self._slots, num_resources)
            schedule[before // self._slots // num_resources : end] = resource
            label = before
        return schedule
