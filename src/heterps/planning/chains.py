"""Find the cheapest schedule for a given tau, with limits and servers: the core of the exact scheduler.

    least(tau)  1. the servers take their least count from the limit of their resource
                2. lightest chain of stages at prices + multipliers: a lower bound whatever the multipliers (Lagrange)
                3. heavier than the cutoff: done. Within the limits and nothing paid to multipliers: it is the cheapest
                4. otherwise labels, which carry the units used; few suffice for most problems
                5. still undecided: the multipliers with the highest bound, then more labels, which that bound prunes

`weight` is a bill in USD, divided by the constant Problem.hours_per_tau: tau * rate if units are sold one by one. Where
they are not (market.py), chains are found at prices that no cover undercuts, and labels are weighed by their cover.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps.planning import chain_kernels as kernels
from heterps.planning.cost import ROUNDING, Floats, Ints, Problem, Schedules
from heterps.planning.kernels import least_count, traffic_of
from heterps.planning.labels import Labels
from heterps.planning.market import all_paid_s, cover, stretch

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
        self.terms, self._borders, self._pays_egress = problem.terms, problem.borders, problem.pays_egress
        if prices is not None and self._pays_egress:  # other prices count units, and units only
            self.terms, self._borders, self._pays_egress = self.terms.copy(), np.zeros_like(self._borders), False
            self.terms[:, :, 14:] = 0.0
        self._disk_usd = problem.disk_usd if prices is None else 0.0
        self._most_traffic = float(self.terms[:, :, 14].max(axis=0).sum() + self._borders.max(axis=(1, 2)).sum())
        self.prices = problem.prices if prices is None else prices
        self.limits = problem.limits if limits is None else limits
        self.server, self.server_s, self.least_servers = problem.server, problem.server_s, problem.least_servers
        self._given = problem.kernel_inputs
        self._memory, self._started = problem.memory, problem.market.started
        self._most = problem.most_workers
        self._offers = None if problem.market.linear or prices is not None else problem.market.offers
        num_resources, num_layers = self.terms.shape[:2]
        self.multipliers = np.zeros(num_resources)
        table = (num_layers + 1, num_resources)
        self._to_go, self._others = np.empty(table), np.empty(table)
        self._last, self._follow = np.zeros(table, np.int64), np.zeros(table, np.int64)
        # The resources whose units labels compare: those whose limits have ever been exceeded, or all of a market.
        self._tracked = np.full(num_resources, self._offers is not None)
        self._columns: list[Schedules] = []  # the chains that determined the current multipliers

    def fastest_s(self) -> float:
        """Lower bound on tau, in seconds, above 0; infinite if servers are needed and cannot be rented."""
        if self.server_s > 0 and (self.server < 0 or self.limits[self.server] < 1):
            return np.inf
        p, a, q, d = (self.terms[:, :, i] for i in range(4))
        units = np.maximum(np.minimum(self.limits, self._most), 1)[:, None]
        busy = np.where(self.limits[:, None] > 0, np.maximum(a + p / units, d + q / units), np.inf)
        servers = self.server_s / self.limits[self.server] if self.server_s > 0 else 0.0
        return float(max(busy.min(axis=0).max(), servers))

    def heaviest(self, tau: float) -> float:
        """Upper bound on the weight of all plans with this tau."""
        if self._offers is not None:
            offers = self._offers
            paid = all_paid_s(offers, tau)
            most = float((offers.usd * paid) @ offers.limits) + self._disk_usd * tau + self._most_traffic
            return most * stretch(float(offers.risk @ offers.limits)) * (1 + 1e-9)
        most = float(self.prices @ ((tau + self._started) * self.limits)) + self._disk_usd * tau + self._most_traffic
        return most * (1 + 1e-9)

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
        dear = scarcity * float(self.prices @ self.limits) / np.maximum(self.limits, 1) / len(self.limits)
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
        if (units <= free).all():
            weight = self._weigh(units + (self.limits - free), tau, schedule, bound)
            if weight <= bound * (1 + ROUNDING) and not (self.multipliers * (units - free)).any():
                return Chain(weight, schedule)
            if self._offers is not None and weight < best.weight:
                best = Chain(weight, schedule)
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
        """Return the units of each resource that the servers leave, or None if they need too many, and the weight of
        the servers with their disks.
        """
        if self.server_s == 0:
            return self.limits, 0.0
        limit = int(self.limits[self.server]) if self.server >= 0 else 0
        count = max(least_count(self.server_s, 0.0, 0.0, 0.0, hi, limit), self.least_servers)
        if count > limit:
            return None, np.inf
        free = self.limits.copy()
        free[self.server] -= count
        seconds = max(lo * count, self.server_s) + float(self._started[self.server]) * count
        seconds = max(seconds, float(self._paid(lo)[self.server]) * count)
        return free, float(self.prices[self.server]) * seconds + self._disk_usd * lo

    def _weigh(self, units: Ints, tau: float, schedule: Schedules, linear: float) -> float:
        """Return what all `units` cost, with servers: the cheapest cover, or `linear` if they are sold one by one."""
        if self._offers is None:
            return linear
        taken = np.empty(len(self._offers.usd), np.int64)
        return float(cover(self._offers, units, tau, self._traffic(schedule) + self._disk_usd * tau, taken))

    def _traffic(self, schedule: Schedules) -> float:
        return float(traffic_of(self._given, schedule)) if self._pays_egress else 0.0

    def _lightest(self, lo: float, hi: float, free: Ints, multipliers: Floats, cutoff: float) -> float:
        refund = float(multipliers @ ((hi + self._started) * free))
        weight = kernels.lightest_chain(
            self.terms, self._borders, self.prices + multipliers, np.minimum(free, self._most), self._memory,
            self._started, self._paid(lo),
            lo, hi, cutoff + refund,
            self._to_go, self._others, self._last, self._follow,
        )  # fmt: skip
        return float(weight) - refund

    def _paid(self, tau: float) -> Floats:
        """Return the least seconds [T] that a unit of each resource is paid for, if a batch takes tau."""
        if self._offers is None or not (self._offers.step.any() or self._offers.least.any()):
            return tau + self._started
        having = self._offers.units > 0
        paid = all_paid_s(self._offers, tau)
        least = np.where(having, paid[:, None], np.inf).min(axis=0)
        return np.where(np.isfinite(least), least, 0.0)

    def _read(self) -> Schedules | None:
        """Read the schedule of the lightest chain; None if there is none below the cutoff."""
        if self._to_go[0].min() == np.inf:
            return None
        schedule = np.empty(self.terms.shape[1], np.int16)
        kernels.read_chain(self._to_go, self._last, self._follow, schedule)
        return schedule

    def _units(self, schedule: Schedules, tau: float) -> Ints:
        units = np.empty(len(self.limits), np.int64)
        stages = self._given._replace(server=-1, server_s=0.0, tau_max=tau)
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
            span = tau + self._started
            units = np.array([free, *(used for _, used in columns)]) * (span / tau)
            fixed = np.array([0.0, *(self._traffic(schedule) / tau for schedule, _ in columns)])
            rates = np.array([(ceiling - servers) / tau, *(float(self.prices @ used) for used in units[1:])]) + fixed
            mixed = linprog(rates, units.T, units[0], np.ones((1, len(rates))), [1.0], method="highs-ds")
            if not mixed.success:  # the solver gave up on its numbers: what is known so far is a bound as well
                self.multipliers = best
                return min(max(highest, 0.0), ceiling)
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
        refund = float(self.multipliers @ ((tau + self._started) * free))
        while True:
            tracked = np.flatnonzero(self._tracked | (self.multipliers > 0))
            labels = WeighedLabels(width, len(self._others) - 1, self._others.shape[1])
            missed = servers - refund + kernels.extend_labels(
                self.terms, self._borders, self.prices, self.multipliers, free, self._memory, self._started,
                np.minimum(free, self._most), tracked, tau,
                known.weight - servers + refund,
                self._others, labels.weight, labels.bound, labels.units, labels.before, labels.num,
            )  # fmt: skip
            if self._offers is not None:
                weights = {
                    at: self._weigh(labels.units[at] + (self.limits - free), tau, labels.schedule(at), 0.0)
                    for at in labels.ends()
                }
                label = min(weights, key=weights.__getitem__, default=-1)
                if label < 0 or weights[label] >= known.weight:
                    return known, missed
                return Chain(weights[label], labels.schedule(label)), missed
            label = labels.lightest()
            if label < 0 or labels.weight[label] + servers >= known.weight:
                return known, missed
            over = labels.units[label] > free
            if not over.any():
                return Chain(float(labels.weight[label]) + servers, labels.schedule(label)), missed
            self._tracked |= over


class WeighedLabels(Labels):
    """The arrays of chain_kernels.extend_labels."""

    def __init__(self, width: int, num_layers: int, num_resources: int) -> None:
        super().__init__(width, num_layers, num_resources)
        self.weight, self.bound = np.empty(self.total), np.empty(self.total)
        self.units = np.empty((self.total, num_resources), np.int64)

    def lightest(self) -> int:
        """Return the index of the lightest label that covers all layers; -1 if there is none."""
        return min(self.ends(), key=lambda label: float(self.weight[label]), default=-1)
