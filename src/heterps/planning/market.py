"""The market: what is rented, in which bundles, and what it costs to cover the units that a plan needs.

A plan needs units of resources; a provider sells offers. An offer is one unit, one spot unit, or a machine with units
of several resources. The bill is that of the cheapest offers that together have all the units:

    plan needs   cpu 40, v100 6          offers   cpu 0.04, v100-spot 0.92 (limit 4), p3.16xlarge 24.48: 8 v100 + 32 cpu
    cover        1 p3.16xlarge + 8 cpu   = 24.48 + 0.32 USD an hour: cores that come with a machine are used first

    weight = (sum of price * paid seconds + what is paid besides) * exp(sum of risk)
    risk   = interruptions per second * seconds lost by each

Work goes on while no interruption was within the seconds that one costs. With interruptions that come independently
that is a share exp(-risk) of the time, so a job takes exp(risk) times as long (sim/spot.py plays it).

Paid seconds are those of the job and of the start-up, at least the minimum, rounded up to whole billing steps. Seconds
are per batch throughout, as in cost.py, so that `weight` is a bill in USD but for the constant Problem.hours_per_tau.

The search needs a price per unit that never promises too little: `unit_prices` are such that no offer costs less than
its units (a feasible solution of the dual of the covering problem), so that units * price is a lower bound of a cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from heterps.config import Cluster, Resource
from heterps.planning.interruptions import ROLLBACK_S
from heterps.planning.plan import SPOT

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Offers(NamedTuple):
    """What can be rented, as arrays for compiled kernels. J offers, T resources."""

    units: Ints  # [J, T]: units of each resource that one of the offer has
    usd: Floats  # [J] per hour
    limits: Ints  # [J]
    started: Floats  # [J]: seconds of start-up
    step: Floats  # [J]: seconds to whose multiples paid time is rounded up; 0: it is not
    least: Floats  # [J]: least paid seconds
    risk: Floats  # [J]: expected number of interruptions of one of it within the seconds that an interruption costs


class Market(NamedTuple):
    """The offers of a cluster for some resources, with their names, and what follows from them."""

    names: tuple[str, ...]
    offers: Offers
    prices: Floats  # [T]: lower bound of the USD per unit and hour
    started: Floats  # [T]: lower bound of the start-up of a unit, in seconds per batch
    limits: Ints  # [T]: largest number of units
    linear: bool  # whether a cover costs exactly units * prices * (seconds + started)


def without_facts(cluster: Cluster) -> Cluster:
    """The cluster with nothing but prices and limits."""
    resources = {
        name: Resource(device=resource.device, usd_per_hour=resource.usd_per_hour, limit=resource.limit)
        for name, resource in cluster.resources.items()
    }
    return cluster.model_copy(update={"resources": resources, "machines": {}, "egress_usd_per_gb": 0.0})


def make_market(
    cluster: Cluster,
    resources: Sequence[str],
    num_batches: float,
    start_s: float = 0.0,
    lost_s: Callable[[str], float] = lambda _name: ROLLBACK_S,
) -> Market:
    """Collect what the cluster offers of `resources` for a job of `num_batches` batches.

    start_s  what the first batches take more than others; everything that is rented is paid for it as well
    lost_s   seconds that the job loses when a spot unit of a resource is taken back
    """
    names: list[str] = []
    rows: list[tuple[list[int], float, int, float, float, float, float]] = []

    def add(name: str, units: list[int], usd: float, limit: int, times_s: tuple[float, ...], risk: float) -> None:
        if limit > 0:
            names.append(name)
            rows.append((units, usd, limit, *(s / num_batches for s in times_s), risk))  # type: ignore[arg-type]

    for t, name in enumerate(resources):
        resource = cluster.resources[name]
        one = [int(t == other) for other in range(len(resources))]
        times_s = (resource.startup_s + start_s, resource.billing_s, resource.minimum_s)
        if cluster.sold_alone(name):
            add(name, one, resource.usd_per_hour, resource.limit, times_s, 0.0)
        if (spot := resource.spot) is not None:
            risk = spot.interruptions_per_hour * lost_s(name) / 3600
            restarts = spot.interruptions_per_hour * resource.startup_s / 3600  # a unit in the place of one is paid too
            add(f"{name}{SPOT}", one, spot.usd_per_hour * (1 + restarts), spot.limit, times_s, risk)
    for name, machine in cluster.machines.items():
        units = [machine.units.get(resource, 0) for resource in resources]
        if any(units):
            times_s = (machine.startup_s + start_s, machine.billing_s, machine.minimum_s)
            add(name, units, machine.usd_per_hour, machine.limit, times_s, 0.0)
    table = list(zip(*rows, strict=True)) if rows else [()] * 7
    offers = Offers(
        np.array(table[0], np.int64).reshape(len(rows), len(resources)),
        np.array(table[1], np.float64),
        np.array(table[2], np.int64),
        *(np.array(column, np.float64) for column in table[3:]),
    )
    per_kind = (offers.units > 0).sum(axis=0)
    linear = bool(
        (per_kind <= 1).all()
        and (offers.units.sum(axis=1) == 1).all()
        and not (offers.step.any() or offers.least.any() or offers.risk.any())
    )
    limits = np.array([cluster.most_units(name) for name in resources], np.int64)
    return Market(tuple(names), offers, unit_prices(offers), _least_started(offers), limits, linear)


def unit_prices(offers: Offers) -> Floats:
    """Return USD per unit such that no offer costs less than its units; 0 for a resource that nothing offers."""
    num_offers, num_resources = offers.units.shape
    prices = np.full(num_resources, np.inf)
    alone = [j for j in range(num_offers) if (offers.units[j] > 0).sum() == 1]
    for j in alone:
        t = int(offers.units[j].argmax())
        prices[t] = min(prices[t], offers.usd[j] / offers.units[j, t])
    for j in range(num_offers):
        if j in alone:
            continue
        units, known = offers.units[j], np.isfinite(prices)
        rest = offers.usd[j] - float(units[known] @ prices[known])
        others = (units > 0) & ~known
        if others.any():
            prices[others] = max(rest, 0.0) / units[others].sum()
    prices[~np.isfinite(prices)] = 0.0
    for j in range(num_offers):
        paid = float(offers.units[j] @ prices)
        if paid > offers.usd[j]:
            prices[offers.units[j] > 0] *= offers.usd[j] / paid
    return prices


def _least_started(offers: Offers) -> Floats:
    having = np.where(offers.units > 0, offers.started[:, None], np.inf)
    least = having.min(axis=0, initial=np.inf)
    return np.where(np.isfinite(least), least, 0.0)


_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def paid_s(offers: Offers, j: int, tau: float) -> float:
    """Seconds per batch that one of offer j is paid for, if a batch takes tau."""
    seconds: float = max(tau + offers.started[j], offers.least[j])
    if offers.step[j] > 0.0:
        seconds = math.ceil(seconds / offers.step[j] * (1.0 - 1e-12)) * offers.step[j]
    return seconds


@_compiled
def all_paid_s(offers: Offers, tau: float) -> Floats:
    """Return the seconds per batch [J] that one of each offer is paid for, if a batch takes tau."""
    paid = np.empty(offers.usd.shape[0])
    for j in range(paid.shape[0]):
        paid[j] = paid_s(offers, j, tau)
    return paid


@_compiled
def stretch(risk: float) -> float:
    """Return how many times as long a job takes with interruptions of this risk; it never overflows."""
    return math.exp(min(risk, 700.0))


@_compiled
def least_growth(offers: Offers, tau: float, slower: float) -> float:
    """Return the least ratio, over all offers, of the paid seconds at tau to those at `slower`, a larger tau."""
    ratio = 1.0
    for j in range(offers.usd.shape[0]):
        ratio = min(ratio, paid_s(offers, j, tau) / paid_s(offers, j, slower))
    return ratio


@_compiled
def cover(offers: Offers, needed: Ints, tau: float, besides: float, taken: Ints) -> float:
    """Return the least weight of offers that have the `needed` units [T], and write how many of each are `taken` [J].

    What is paid `besides`, disks and traffic between zones, is part of it: interruptions repeat that too.

    Infinite, with nothing taken, if there are not enough. Machines and spot units are tried in every number, like the
    digits of a number; single units fill what is left, the cheapest first.
    """
    num_offers, num_resources = offers.units.shape
    price = np.empty(num_offers)
    tried, singles = np.empty(num_offers, np.int64), np.empty(num_offers, np.int64)
    num_tried, num_singles = 0, 0
    for j in range(num_offers):
        price[j] = offers.usd[j] * paid_s(offers, j, tau)
        if offers.units[j].sum() > 1 or offers.risk[j] > 0.0:
            tried[num_tried] = j
            num_tried += 1
        else:
            at = num_singles
            while at > 0 and price[singles[at - 1]] > price[j]:
                singles[at] = singles[at - 1]
                at -= 1
            singles[at] = j
            num_singles += 1
    taken[:] = 0
    count = np.zeros(num_offers, np.int64)
    left = needed.copy()
    best = np.inf
    weight, risk = besides, 0.0
    while True:
        total = weight  # fill what is left by single units
        rest = 0
        longer = stretch(risk)
        if weight * longer < best:
            for t in range(num_resources):
                want = max(left[t], 0)
                for i in range(num_singles):
                    j = singles[i]
                    if want > 0 and offers.units[j, t] == 1:
                        count[j] = min(want, offers.limits[j])
                        want -= count[j]
                        total += price[j] * count[j]
                    elif offers.units[j, t] == 1:
                        count[j] = 0
                rest += want
            if rest == 0 and total * longer < best:
                best = total * longer
                taken[:] = count
        digit = num_tried - 1  # the next number of machines and spot units
        while digit >= 0:
            j = tried[digit]
            helps = False
            for t in range(num_resources):
                helps = helps or (offers.units[j, t] > 0 and left[t] > 0)
            if helps and count[j] < offers.limits[j] and weight * stretch(risk) < best:
                count[j] += 1
                weight += price[j]
                risk += offers.risk[j]
                for t in range(num_resources):
                    left[t] -= offers.units[j, t]
                break
            weight -= price[j] * count[j]
            risk -= offers.risk[j] * count[j]
            for t in range(num_resources):
                left[t] += offers.units[j, t] * count[j]
            count[j] = 0
            digit -= 1
        if digit < 0:
            return best
