"""Lower bounds on the bills of plans in rounds: no plan of a box weighs less, whatever the multipliers.

A box (round_boxes.py) is a set of plans: one number of lanes, and ranges of z, of the seconds T of a round, of the
number n of servers, of how many of each offer are rented, and of the units U. A plan in it is a chain of stages with

    weight >= T * R             R   USD per hour of the offers y that cover its units U, of disks, and traffic / T
    T  = c0 + z + fill + (V + moved) / n            (round_kernels.py)

With prices rho per unit that need not be those of any offer, and a price lam per second (the ranges of units have
prices likewise),

    1. what the offers cost is at least rho*U + sum over offers of the least (a - rho*u) y, for y in its range
    2. M = the least R + lam*T of any plan: a shortest path, because units, fill, moved and traffic add up over stages.
       For a fixed n that is; as a function of 1/n it is concave, so a chord from fewest to most servers is below it
    3. so R >= M - lam*T for each plan, and its weight is at least T * (M - lam*T): concave in T, so least where T is
       shortest or longest

         R |\\ .                          .  T * R = weight: any plan on it or above costs as much or more
           | \\  .                        \\  R = M - lam*T: no plan of the box is below
           |  \\    .
           +---[====]----- T              the bound is that of the lower end of the line between the range's ends

    4. The best rho and lam maximise a concave function: Kelley's cutting planes, where each chain found so far limits
       M, linearly in rho and lam (a linear program of some 40 variables).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps.planning import round_kernels as kernels
from heterps.planning.cost import Floats, Ints, Problem, Schedules
from heterps.planning.market import all_paid_s, stretch
from heterps.planning.round_boxes import Box, Loose
from heterps.planning.round_labels import BoxOfLabels
from heterps.planning.round_stages import Needs, Stages

NEAR = 3e-4
"""Relative distance to the best bound of the chains known at which the search for multipliers ends."""
MOST_COLUMNS = 24
"""Number of chains that a box hands on to those that it is split into."""
CEILING = 1.02
"""Bounds above this times the best bill are not asked for."""


EVEN = Loose(0.0, "units")
"""A bound that no mix of chains makes too low."""


class Multipliers(NamedTuple):
    """Prices of a bound in USD per hour."""

    units: Floats  # rho [T]: of a unit that is rented
    ranges: (
        Floats  # [T]: of a unit of a stage besides, above 0 where the most units of the box bind, below for the least
    )
    second: float  # lam


class Column(NamedTuple):
    """A chain that a bound was limited by, with a number of servers."""

    schedule: Schedules
    servers: int


class Bound(NamedTuple):
    """A lower bound, what gives it, and the chains that limit it, the lightest first."""

    weight: float
    multipliers: Multipliers
    columns: Sequence[Column]
    mixed: Loose = EVEN


class Rates(NamedTuple):
    """What the offers of a box cost at least: longer * T * (the sum of usd * rented - refund)."""

    usd: Floats  # [J] per hour
    refund: float
    longer: float


class Bounds:
    """Bounds of one problem."""

    def __init__(self, problem: Problem) -> None:
        self._given, self._offers = problem.kernel_inputs, problem.market.offers
        self._overhead_s = problem.overhead_s
        self._has_servers = needs_servers(problem)
        self._risky = self._offers.risk > 0
        self._is_risky = bool(self._risky.any())

    def bound(self, box: Box, stages: Stages, multipliers: Multipliers, least: float, best: float) -> Bound:
        """Bound the plans of a box that cost less than `best`.

        `stages` are those of its largest z, `least` is a bound that is known.
        """
        return self._bound(box, stages, multipliers, self._rates(box, least, best))

    def _bound(self, box: Box, stages: Stages, multipliers: Multipliers, rates: Rates) -> Bound:
        longest = box.seconds[1]
        second, prices = multipliers.second, multipliers.units + multipliers.ranges
        found = []
        for servers in dict.fromkeys(box.servers):  # [2]
            weight, schedule, _ = stages.lightest(prices, second, second / servers, 1 / longest, box.units[1])
            if schedule is None:
                return Bound(math.inf, multipliers, ())
            found.append((weight, schedule))
        (fewest, few_schedule), (most, many_schedule) = found[0], found[-1]
        fixed = self._fixed(box, multipliers, rates)
        per_server = self._server_price(multipliers)
        per_share = second * self._given.server_s
        least_sum, share = kernels.least_over_servers(box.servers, fewest, most, per_server, per_share)
        servers = round(1 / share)
        columns = [Column(few_schedule, box.servers[0]), Column(many_schedule, box.servers[1])]
        columns += [Column(few_schedule, servers), Column(many_schedule, servers)]
        weight = rates.longer * float(kernels.weight_on_line(box.seconds, fixed + least_sum, second))
        return Bound(weight, multipliers, columns)

    def steepest(self, box: Box, stages: Stages, known: Bound, best: float) -> Bound:
        """Bound a box by the known prices of units and a few of a second.

        Of all lines the one between the ends of T * R = best proves that no plan of the box is below: if that is so.
        """
        shortest, longest = box.seconds
        rates = self._rates(box, known.weight, best)
        highest = self._bound(box, stages, known.multipliers, rates)
        for target in (best, known.weight):
            if highest.weight < best and shortest > 0:
                line = known.multipliers._replace(second=target / shortest / longest)
                highest = max(highest, self._bound(box, stages, line, rates), key=lambda one: one.weight)
        return highest

    def raised(self, box: Box, stages: Stages, known: Bound, best: float, steps: int) -> Bound:
        """Raise the bound of a box by better multipliers, found in at most `steps` steps [4]; up to about `best`."""
        from scipy.optimize import linprog

        rates = self._rates(box, known.weight, best)
        highest = self.steepest(box, stages, known, best)
        if highest.weight >= best or not math.isfinite(best):
            return highest
        pool: dict[tuple[bytes, int], tuple[Column, Needs]] = {}
        _add(pool, box, stages, [*known.columns, *highest.columns])
        mixed, num = EVEN, self._given.prices.shape[0]
        seconds = box.seconds[1]
        usd = best / rates.longer / seconds  # in these units the program's numbers are near 1
        for _ in range(steps):
            program = self._program(box, rates, list(pool.values()), usd, seconds)
            solved = linprog(*program, method="highs-ds")
            if not solved.success:
                break
            second = max(float(solved.x[2]), 0.0) * usd / seconds
            rented, most, least = np.maximum(solved.x[3 : 3 + 3 * num], 0.0).reshape(3, num) * usd
            tried = self._bound(box, stages, Multipliers(rented, most - least, second), rates)
            shares = -solved.ineqlin.marginals[2 + len(rates.usd) :]
            mixed = self._mixed(box, rates, [needs for _, needs in pool.values()], shares)
            if tried.weight > highest.weight:
                highest = tried
            if highest.weight >= min(best, -solved.fun * best * (1 - NEAR)):
                break
            if not _add(pool, box, stages, tried.columns):
                break
        columns = self._lightest(box, highest.multipliers, list(pool.values()))
        return highest._replace(columns=columns, mixed=mixed)

    def for_labels(self, box: Box, stages: Stages, known: Bound, best: float) -> BoxOfLabels:
        """Return what bounds the labels of a box, by the multipliers of its bound."""
        second, prices = known.multipliers.second, known.multipliers.units + known.multipliers.ranges
        per_traffic, limits = 1 / box.seconds[1], box.units[1]
        fewest, most = (stages.lightest(prices, second, second / n, per_traffic, limits)[2] for n in box.servers)
        rates = self._rates(box, known.weight, best)
        fixed, per_server = self._fixed(box, known.multipliers, rates), self._server_price(known.multipliers)
        return BoxOfLabels(
            box.seconds, box.servers, limits, rates.longer, prices, second, per_server, fixed, most, fewest
        )

    def _server_price(self, multipliers: Multipliers) -> float:
        return float(multipliers.units[self._given.server]) if self._has_servers else 0.0

    def _rates(self, box: Box, least: float, best: float) -> Rates:
        """Return what the offers of plans below `best` cost at least, with their start and their risk.

        With a risk r from r1 to r2 a weight X * exp(r) >= least is at least exp(r1) * (X + x * (r - r1)), where x is
        least / exp(r2). A plan below `best` has only as many spot units as that pays for.
        """
        shortest, longest = box.seconds
        offers = self._offers
        paid = all_paid_s(offers, shortest)
        usd = offers.usd * np.maximum(longest + offers.started, paid) / longest
        risky = self._risky
        if not self._is_risky:
            return Rates(usd, 0.0, 1.0)
        lowest, highest = float(offers.risk @ box.rented[0]), float(offers.risk @ box.rented[1])
        with np.errstate(divide="ignore"):
            per_weight = float((offers.risk[risky] / (offers.usd * paid)[risky]).max())
        rate = least / stretch(max(min(highest, per_weight * best), lowest)) / longest
        return Rates(usd + offers.risk * rate, lowest * rate, stretch(lowest))

    def _fixed(self, box: Box, multipliers: Multipliers, rates: Rates) -> float:
        """Return R + lam*T of what is no stage and no server [1], a little less for the rounding of large sums."""
        usd = kernels.least_beside_units(
            self._offers.units, rates.usd, multipliers.units, multipliers.ranges, box.rented, box.units
        )
        usd += self._given.disk_usd - rates.refund
        return usd + multipliers.second * (self._overhead_s + box.z[0])

    def _program(
        self, box: Box, rates: Rates, columns: list[tuple[Column, Needs]], usd: float, seconds: float
    ) -> tuple[object, ...]:
        """Return the linear program of [4]: variables are the bound, M, lam, rho [T], prices of units up to the most
        [T] and down to the least [T] of the box, and for each offer by how much its units at rho cost more [J] or less
        [J] than it does.
        """
        num, num_offers = self._given.prices.shape[0], len(rates.usd)
        width = 3 + 3 * num + 2 * num_offers
        rows, most = [], []
        for end in box.seconds:  # [3]
            rows.append(_row(width, {0: 1.0, 1: -end / seconds, 2: (end / seconds) ** 2}))
            most.append(0.0)
        for j in range(num_offers):
            row = _row(width, {3 + 3 * num + j: -1.0, 3 + 3 * num + num_offers + j: 1.0})
            row[3 : 3 + num] = self._offers.units[j]
            rows.append(row)
            most.append(rates.usd[j] / usd)
        for column, needs in columns:
            row = _row(width, {1: 1.0, 2: -self._round_s(box, column, needs) / seconds})
            beside = [box.units[1] - needs.units, needs.units - box.units[0], box.rented[1], -box.rented[0]]
            row[3:] = np.concatenate([-self._units(column, needs), *beside])
            rows.append(row)
            most.append((needs.traffic / box.seconds[1] + self._given.disk_usd - rates.refund) / usd)
        limits = [(None, CEILING), (None, None), *[(0, None)] * (width - 2)]
        return _row(width, {0: -1.0}), np.array(rows), np.array(most), None, None, limits

    def _mixed(self, box: Box, rates: Rates, needs: list[Needs], shares: Floats) -> Loose:
        """Return the resource whose units make the bound too low, because it is that of a mix of chains.

        A mix of 6 units of one kind and 6 of another is 3 of each, which may all be spot units where each chain by
        itself has to rent others too. By how much the chains by themselves cost more is what is loose.
        """
        shares = np.maximum(shares, 0.0)
        total = float(shares.sum())
        if not total > 0:
            return EVEN
        shares = shares / total
        units = np.array([one.units for one in needs], np.float64)
        mean = shares @ units
        usd, mean_usd = self._singles_usd(box, rates, units, mean)
        found = EVEN
        for t in np.flatnonzero((box.units[0] < box.units[1]) & (mean > 0)).tolist():
            more = float(shares @ usd[:, t] - mean_usd[t])
            middle = min(max(math.floor(mean[t]), int(box.units[0][t])), int(box.units[1][t]) - 1)
            found = max(found, Loose(more, "units", t, middle))
        rate = float(shares @ usd.sum(axis=1))
        return found._replace(share=found.share / rate) if rate > 0 else EVEN

    def _singles_usd(self, box: Box, rates: Rates, units: Floats, mean: Floats) -> tuple[Floats, Floats]:
        """Return the USD per hour of these numbers of units of each resource [n, T], [T], the cheapest first.

        Those beyond all offers are given a price as well, twice that of the last.
        """
        all_units = np.vstack([units, mean])
        usd = np.zeros_like(all_units)
        singles = self._offers.units.sum(axis=1) == 1
        for t in range(all_units.shape[1]):
            left, price = all_units[:, t].copy(), float(self._given.prices[t])
            having = np.flatnonzero(singles & (self._offers.units[:, t] == 1))
            for j in having[np.argsort(rates.usd[having], kind="stable")]:
                price = float(rates.usd[j])
                taken = np.minimum(left, box.rented[1][j])
                usd[:, t] += price * taken
                left -= taken
            usd[:, t] += 2 * price * left
        return usd[:-1], usd[-1]

    def _round_s(self, box: Box, column: Column, needs: Needs) -> float:
        served = (self._given.server_s + needs.moved_s) / column.servers if self._has_servers else 0.0
        return self._overhead_s + box.z[0] + needs.fill_s + served

    def _units(self, column: Column, needs: Needs) -> Ints:
        units = needs.units.copy()
        if self._has_servers:
            units[self._given.server] += column.servers
        return units

    def _lightest(self, box: Box, multipliers: Multipliers, columns: list[tuple[Column, Needs]]) -> tuple[Column, ...]:
        """Return the columns that limit the bound the most."""

        def weight(at: int) -> float:
            column, needs = columns[at]
            paid = float(multipliers.units @ self._units(column, needs) + multipliers.ranges @ needs.units)
            paid += needs.traffic / box.seconds[1]
            return paid + multipliers.second * self._round_s(box, column, needs)

        order = sorted(range(len(columns)), key=weight)
        return tuple(columns[at][0] for at in order[:MOST_COLUMNS])


def needs_servers(problem: Problem) -> bool:
    """Tell whether plans in rounds have servers: for rows and steps, or for weights of workers."""
    return problem.server_s > 0 or bool(problem.terms[:, :, 11].any())


def _add(
    pool: dict[tuple[bytes, int], tuple[Column, Needs]], box: Box, stages: Stages, columns: Sequence[Column]
) -> bool:
    """Add the columns that fit the box, and tell whether one of them is new."""
    known = len(pool)
    for schedule, servers in columns:
        column = Column(schedule, min(max(servers, box.servers[0]), box.servers[1]))
        key = (schedule.tobytes(), column.servers)
        needs = stages.needs(schedule) if key not in pool else None
        if needs is not None and (needs.largest <= box.units[1]).all():
            pool[key] = column, needs
    return len(pool) > known


def _row(width: int, values: dict[int, float]) -> Floats:
    row = np.zeros(width)
    for at, value in values.items():
        row[at] = value
    return row
