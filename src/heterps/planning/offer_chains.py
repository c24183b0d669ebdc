"""Find the cheapest schedule for a given tau where units are sold in limited offers; chains.py is for single units.

    least(tau)  1. the servers take their least count from the limit of their resource
                2. lightest chain of stages, each unit at its value: a lower bound whatever the values (unit_values.py)
                3. heavier than the cutoff: done. As heavy as its own bill, within the limits: it is the cheapest
                4. otherwise labels, which carry the units used; few suffice for most problems
                5. still undecided: the values with the highest bound, then more labels, which that bound prunes

`weight` is a bill in USD, divided by the constant Problem.hours_per_tau: tau * rate if units are sold one by one. Where
they are not (market.py), labels carry units and traffic, and are weighed by their cover.
"""

from __future__ import annotations

import numpy as np

from heterps.planning import chain_kernels as kernels
from heterps.planning.chains import Chain, Undecided, WeighedLabels
from heterps.planning.cost import ROUNDING, UNLIMITED, Floats, Ints, Problem, Schedules
from heterps.planning.kernels import least_count, traffic_of
from heterps.planning.market import all_paid_s, cover, stretch
from heterps.planning.unit_values import UnitColumn, best_values, sold_singly

LABELS = (12, 48, 192)
"""Largest number of labels per state, by effort."""
SMALL = 200
"""Number of states up to which labels are faster than better values."""
EFFORTS = len(LABELS)
MOST_COLUMNS, NEAR = 60, 1e-4
"""Largest number of chains made to find the best values, and the relative gap to the best bound at which to stop."""
SLACK = 1.01
"""A chain is given up if it weighs more than this times the cutoff; each such bound allows a step in tau."""


class OfferChains:
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
        self._sold = self._offers or sold_singly(self.prices, self.limits, self._started)
        self._is_risky = bool(self._sold.risk.any())
        num_resources, num_layers = self.terms.shape[:2]
        self.values = np.array(self.prices, np.float64)
        table = (num_layers + 1, num_resources)
        self._to_go, self._others = np.empty(table), np.empty(table)
        self._last, self._follow = np.zeros(table, np.int64), np.zeros(table, np.int64)
        # The resources whose units labels compare: those whose limits have ever been exceeded, or all of a market.
        self._tracked = np.full(num_resources, self._offers is not None)
        self._columns: list[Schedules] = []  # the chains that determined the current values

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
        servers = self._servers(hi)
        return self._lightest(lo, hi, servers, cutoff)[0] if servers is not None else cutoff

    def unlimited(self, tau: float, scarcity: float) -> Schedules | None:
        """Find the cheapest schedule for tau if limits apply to each station alone, not to their sum.

        A `scarcity` above 0 raises the prices of rare resources, so that sums exceed limits less often.
        """
        servers = self._servers(tau)
        if servers is None:
            return None
        known = self.values
        dear = scarcity * float(self.prices @ self.limits) / np.maximum(self.limits, 1) / len(self.limits)
        self.values = self.prices + dear
        self._lightest(tau, tau, servers, np.inf)
        self.values = known
        return self._read()

    def least(self, tau: float, cutoff: float, effort: int = EFFORTS - 1) -> Chain:
        """Find the cheapest schedule for tau, unless it is clearly heavier than the cutoff.

        Raises Undecided if it cannot be proven with this `effort`, 0 to EFFORTS - 1.
        """
        servers = self._servers(tau)  # [1]
        if servers is None:
            return Chain(np.inf)
        best = Chain(cutoff * SLACK)
        bound, _ = self._lightest(tau, tau, servers, best.weight)  # [2]
        schedule = self._read()
        if schedule is None or bound >= best.weight:  # [3]
            return best
        units = self._units(schedule, tau) + servers
        self._tracked |= units > self.limits
        if (units <= self.limits).all() and (weight := self._weigh(units, tau, schedule)) < best.weight:
            best = Chain(weight, schedule)
            if weight <= bound * (1 + ROUNDING):
                return best
        if self._others.size <= SMALL:  # [4]
            best, missed = self._by_labels(tau, best, servers, LABELS[0])
            bound = max(bound, min(missed, best.weight))
        if bound < best.weight * (1 - ROUNDING):  # [5]
            bound = max(bound, self._raise_bound(tau, best.weight, servers))
        for width in LABELS[: effort + 1]:
            if bound >= best.weight * (1 - ROUNDING):
                return best
            best, missed = self._by_labels(tau, best, servers, width)
            bound = max(bound, min(missed, best.weight))
        if bound >= best.weight * (1 - ROUNDING):
            return best
        raise Undecided(best.schedule, bound)

    def _servers(self, tau: float) -> Ints | None:
        """Return the units of each resource [T] that the servers take, or None if they need more than the limit."""
        servers = np.zeros(len(self.limits), np.int64)
        if self.server_s == 0:
            return servers
        limit = int(self.limits[self.server]) if self.server >= 0 else 0
        count = max(least_count(self.server_s, 0.0, 0.0, 0.0, tau, limit), self.least_servers)
        servers[self.server] = count
        return servers if count <= limit else None

    def _weigh(self, units: Ints, tau: float, schedule: Schedules) -> float:
        """Return what all `units` cost, with servers, traffic and disks: the cheapest cover if there are offers."""
        besides = self._traffic(schedule) + self._disk_usd * tau
        if self._offers is None:
            return float(self.prices @ ((tau + self._started) * units)) + besides
        return float(cover(self._offers, units, tau, besides, np.empty(len(self._offers.usd), np.int64)))

    def _traffic(self, schedule: Schedules) -> float:
        return float(traffic_of(self._given, schedule)) if self._pays_egress else 0.0

    def _lightest(self, lo: float, hi: float, servers: Ints, cutoff: float) -> tuple[float, float]:
        """Return a bound on the weight of plans with a tau in [lo, hi], at most the cutoff, and what is part of it
        beside the stages. Leaves the lightest chain for `_read`.
        """
        paid = self._paid(lo)
        seconds = np.maximum(
            np.maximum(lo * servers, self.server_s * (servers > 0)) + self._started * servers, paid * servers
        )
        fixed = float(self.values @ seconds) + self._disk_usd * lo
        offers = all_paid_s(self._sold, lo)
        given = (self._sold, offers, self.values, self._started, paid, lo, hi)
        beside = fixed - kernels.refund(*given, 0.0)
        stages = float(kernels.lightest_chain(
            self.terms, self._borders, self.values, np.minimum(self.limits - servers, self._most), self._memory,
            self._started, paid, lo, hi, cutoff - beside,
            self._to_go, self._others, self._last, self._follow,
        ))  # fmt: skip
        if self._is_risky:  # a plan without the time that interruptions take weighs at least stages + beside
            beside = fixed - kernels.refund(*given, max(stages + beside, 0.0))
        return min(stages + beside, cutoff), beside

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

    def _raise_bound(self, tau: float, ceiling: float, servers: Ints) -> float:
        """Set the values to those with the highest bound, or with one at the ceiling, and return the bound.

        Kelley's cutting planes: each chain limits the bound, linearly in the values; the next chain is the lightest one
        at the values where the lowest of these limits is highest.
        """
        columns = [column for one in self._columns if (column := self._column(one, tau, servers)) is not None]
        shares: Floats = np.zeros(0)
        highest, best, allowed = -np.inf, self.values, np.inf
        paid, risk = all_paid_s(self._sold, tau), self._sold.risk
        span = np.maximum(tau + self._started, self._paid(tau))
        for _ in range(MOST_COLUMNS):
            bound, _ = self._lightest(tau, tau, servers, np.inf)
            if bound > highest:
                highest, best = bound, self.values
            schedule = self._read()
            if schedule is None or highest >= min(allowed, ceiling) * (1 - NEAR):
                break
            if (column := self._column(schedule, tau, servers)) is not None:
                columns.append(column)
            usd = self._sold.usd * paid + (risk * max(highest, 0.0) if self._is_risky else 0.0)
            found = best_values(self._sold, usd / tau, columns, ceiling / tau)
            if found is None:  # the solver gave up on its numbers: what is known so far is a bound as well
                break
            values, shares, allowed = found.values * tau / span, found.shares, found.bound * tau
            # Those that differ by rounding only need no labels that compare their units.
            self.values = np.where(np.isclose(values, self.prices, rtol=1e-9, atol=0.0), self.prices, values)
        self.values = best
        self._columns = [column.schedule for column, share in zip(columns, shares, strict=False) if share > 0]
        return min(highest, ceiling)

    def _column(self, schedule: Schedules, tau: float, servers: Ints) -> UnitColumn | None:
        """Return what a chain needs at tau, besides units as a rate; None if it is never that fast."""
        units = self._units(schedule, tau) + servers
        rate = self._traffic(schedule) / tau + self._disk_usd
        return UnitColumn(schedule, units, rate) if (units < UNLIMITED).all() else None

    def _by_labels(self, tau: float, known: Chain, servers: Ints, width: int) -> tuple[Chain, float]:
        """Return the lighter of the known chain and the best that labels find, and a bound on the weight of others."""
        _, beside = self._lightest(tau, tau, servers, np.inf)
        free = self.limits - servers
        started = np.maximum(self._started, self._paid(tau) - tau)
        prices = self.prices if self._offers is None else np.zeros_like(self.prices)
        multipliers = self.values - prices
        while True:
            tracked = np.flatnonzero(self._tracked | (self.values != self.prices))
            labels = WeighedLabels(width, len(self._others) - 1, self._others.shape[1])
            missed = beside + kernels.extend_labels(
                self.terms, self._borders, prices, multipliers, free, self._memory, started,
                np.minimum(free, self._most), tracked, tau, known.weight - beside,
                self._others, labels.weight, labels.bound, labels.units, labels.before, labels.num,
            )  # fmt: skip
            ends = labels.ends() if self._offers is not None else [at for at in [labels.lightest()] if at >= 0]
            over = [labels.units[at] > free for at in ends]
            if self._offers is None and any(one.any() for one in over):
                self._tracked |= over[0]
                continue
            for at in ends:
                weight = self._weigh(labels.units[at] + servers, tau, labels.schedule(at))
                if weight < known.weight:
                    known = Chain(weight, labels.schedule(at))
            return known, missed
