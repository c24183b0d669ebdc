"""What a unit of each resource is worth in a bound of the exact scheduler, where offers are limited.

A plan needs units, and a provider sells offers (market.py). Whatever the values of units in USD,

    bill >= sum over offers of price * rented >= sum over resources of value * units - refund

    refund = sum over offers of (the value of its units - its price, if that is above 0) * its limit

because no more of an offer can be rented than its limit. So four cheap spot units make the first four units of a
resource cheap and not all, and units beyond all limits have any price. The least value * units of any plan is a
shortest path over the layers (chain_kernels.py), so each set of values gives a bound on all plans.

The best values are the prices of a linear program: of the chains known, which mix of them, with which rented offers,
costs least? (That is the dual of the highest bound.) The lightest chain at these values joins those known, until none
is lighter than the mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps.planning.cost import Floats, Ints, Schedules
from heterps.planning.market import Offers


class UnitColumn(NamedTuple):
    """A chain of stages with its servers: all units [T] that it needs, and what it pays besides."""

    schedule: Schedules
    units: Ints
    rate: float


class UnitValues(NamedTuple):
    """Values of units [T], the bound that no values exceed, and the share of each column in the cheapest mix."""

    values: Floats
    bound: float
    shares: Floats


def sold_singly(prices: Floats, limits: Ints, started: Floats) -> Offers:
    """Return the offers of a market where every resource is sold by the unit, at one price."""
    nothing = np.zeros(len(prices))
    one_each = np.eye(len(prices), dtype=np.int64)
    return Offers(one_each, np.array(prices, np.float64), limits, started, nothing, nothing, nothing)


def best_values(offers: Offers, usd: Floats, columns: Sequence[UnitColumn], ceiling: float) -> UnitValues | None:
    """Return the values with the highest bound that the columns allow, at most the ceiling; None if it fails.

    `usd` [J] is what one of each offer costs, in the unit of the columns' rates and of the ceiling.
    """
    from scipy.optimize import linprog

    num = len(usd)
    costs = np.array([*usd, *(column.rate for column in columns), ceiling])
    needed = np.array([column.units for column in columns]).reshape(len(columns), offers.units.shape[1])
    rows = np.hstack([-offers.units.T, needed.T, np.zeros((needed.shape[1], 1))])
    one = np.array([[0.0] * num + [1.0] * (len(columns) + 1)])
    limits = [*((0, int(limit)) for limit in offers.limits), *[(0, None)] * (len(columns) + 1)]
    mixed = linprog(costs, rows, np.zeros(len(rows)), one, [1.0], bounds=limits, method="highs-ds")
    if not mixed.success:
        return None
    values = _raised(offers, usd, np.maximum(-mixed.ineqlin.marginals, 0.0))
    return UnitValues(values, float(mixed.fun), mixed.x[num:-1])


def _raised(offers: Offers, usd: Floats, values: Floats) -> Floats:
    """Return the values, each raised as far as no offer has units of more value than its price: as no refund grows."""
    raised = values.copy()
    for t in range(len(values)):
        having = offers.units[:, t] > 0
        if having.any():
            room = (usd[having] - offers.units[having] @ raised) / offers.units[having, t]
            raised[t] += max(float(room.min()), 0.0)
    return raised
