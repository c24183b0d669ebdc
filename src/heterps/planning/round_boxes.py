"""Boxes of plans in rounds, and how they are split: sets of plans that are bounded together (round_bounds.py).

    range      why a bound is too low where it is wide                            looseness, about
    z          counts for the longest z, seconds for the shortest                 width / T
    seconds    T * R is bounded by a line between its ends                        log(longest / shortest)^2 / 4
    servers    what servers take is bounded by a chord in 1/n                     0.08 log(most / fewest)^2
    rented     parts of machines are rented; risks are those of the most units    0.3 of their share; risk^2
    units      mixes of chains share what is cheap, though each alone has to      what the chains pay more by themselves
               rent what is expensive                                             than the mix does (round_bounds.py)

The loosest range is halved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from heterps.planning.cost import Ints
from heterps.planning.market import Offers


class Box(NamedTuple):
    """A set of plans; both ends of every range belong to it."""

    lanes: int
    z: tuple[float, float]  # what the slowest stage adds to a round (round_kernels.py), both ends breakpoints of it
    seconds: tuple[float, float]
    servers: tuple[int, int]  # (1, 1) if none are needed
    rented: tuple[Ints, Ints]  # [J] each
    units: tuple[Ints, Ints]  # [T] each: units of all stages


class Loose(NamedTuple):
    """The part by which the bound of a box may be too low because of one of its ranges."""

    share: float
    range: str
    which: int = -1  # the offer of `rented`, or the resource of `units`
    middle: int = 0  # where `units` are split


def loosest(box: Box, weight: float, mixed: Loose, offers: Offers) -> Loose:
    """Return the range of a box to split, given a bound on the weight of its plans, and what `units` loosen it."""
    return max(mixed, *_loose(box, weight, offers))


def _loose(box: Box, weight: float, offers: Offers) -> Iterator[Loose]:
    shortest, longest = box.seconds
    yield Loose((box.z[1] - box.z[0]) / longest, "z")
    yield Loose(math.log(longest / shortest) ** 2 / 4 if shortest > 0 else 1.0, "seconds")
    yield Loose(0.08 * math.log(box.servers[1] / box.servers[0]) ** 2, "servers")
    more = box.rented[1] - box.rented[0]
    machines = offers.units.sum(axis=1) > 1
    for j in np.flatnonzero((more > 0) & (machines | (offers.risk > 0))).tolist():
        usd = float(offers.usd[j] * more[j]) * longest
        share = 0.3 * (usd / weight if usd < weight else 1.0) if machines[j] else 0.0
        yield Loose(max(share, min(float(offers.risk[j] * more[j]), 1.0) ** 2), "rented", j)


def halves_of_seconds(box: Box) -> list[Box]:
    shortest, longest = box.seconds
    middle = math.sqrt(shortest * longest) if shortest > 0 else longest / 2
    return [box._replace(seconds=(shortest, middle)), box._replace(seconds=(middle, longest))]


def halves_of_servers(box: Box) -> list[Box]:
    fewest, most = box.servers
    middle = min(math.isqrt(fewest * most), most - 1)
    return [box._replace(servers=(fewest, middle)), box._replace(servers=(middle + 1, most))]


def halves_of_rented(box: Box, offer: int) -> list[Box]:
    least, most = box.rented
    half, more = most.copy(), least.copy()
    half[offer] = (least[offer] + most[offer]) // 2
    more[offer] = half[offer] + 1
    return [box._replace(rented=(least, half)), box._replace(rented=(more, most))]


def halves_of_units(box: Box, resource: int, middle: int) -> list[Box]:
    least, most = box.units
    few, more = most.copy(), least.copy()
    few[resource], more[resource] = middle, middle + 1
    return [box._replace(units=(least, few)), box._replace(units=(more, most))]
