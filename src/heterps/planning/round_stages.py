"""The stages of plans in rounds for one z: what each of them needs, and the lightest chain of them.

For given lanes L and z (round_kernels.py draws both) every run of layers on a resource has a least count, and with it
its units, the seconds of its micro-batch, the seconds of servers for its workers' weights, and its traffic. A table
holds them, so that a search pays for them once, and for a shortest path as often as it likes.

Counts change where z passes a breakpoint only: a slow_s of some run with some count. A table of any z knows the two
breakpoints beside it, so that ranges of z can be halved without a list of all, of which there are millions.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from heterps.planning.chain_kernels import read_chain
from heterps.planning.cost import Floats, Ints, KernelInputs, Schedules, runs
from heterps.planning.kernels import EXAMPLE, compiled
from heterps.planning.round_kernels import (
    EACH,
    MOVES,
    SHARED,
    SUMS,
    S,
    W,
    add_layer,
    micro_s,
    round_count,
    slow_s,
    workers_s,
)


class StageArrays(NamedTuple):
    """What the stage of layers first..last on resource t needs, each as an array [T, N, N] of (t, first, last)."""

    counts: Floats
    micro: Floats  # seconds of a micro-batch, and of a round for the workers beyond the model's first
    moved: Floats  # seconds of one server for the weights of all workers
    sent: Floats  # weight of the traffic with servers in other zones
    end: Ints  # [T, N]: the first `last` for which no count suffices


class Needs(NamedTuple):
    """What a chain of stages over all layers needs."""

    units: Ints  # [T]
    largest: Ints  # [T]: those of the largest stage
    fill_s: float  # seconds of a micro-batch through all stages, and of a round for the workers beyond the first
    moved_s: float
    traffic: float


@compiled
def fill_stages(given: KernelInputs, lanes: int, z: float, stages: StageArrays) -> tuple[float, float]:
    """Fill the arrays for z, and return the largest breakpoint up to z and the smallest above it."""
    num_resources, num_layers = given.terms.shape[0], given.terms.shape[1]
    sums = np.empty(SUMS)
    below, above = -np.inf, np.inf
    for t in range(num_resources):
        most = min(given.limits[t], lanes)
        for first in range(num_layers):
            count = 0
            stages.end[t, first] = num_layers
            for last in range(first, num_layers):
                add_layer(sums, given.terms[t, last], last == first, last == 0)
                if count == 0 or sums[W] + sums[S] > given.memory[t] or not slow_s(sums, lanes, count) <= z:
                    count = round_count(given, t, sums, lanes, z)
                if count > given.limits[t]:
                    if most > 0 and slow_s(sums, lanes, most) > z * (1.0 + 1e-12):
                        above = min(above, slow_s(sums, lanes, most))
                    stages.end[t, first] = last
                    break
                below = max(below, slow_s(sums, lanes, count))
                if count > 1 and slow_s(sums, lanes, count - 1) > z * (1.0 + 1e-12):  # else memory asks for more
                    above = min(above, slow_s(sums, lanes, count - 1))
                stages.counts[t, first, last] = count
                stages.micro[t, first, last] = micro_s(sums, lanes) + workers_s(sums, count, given.worker_s)
                if first == 0:
                    stages.micro[t, first, last] -= given.worker_s
                stages.moved[t, first, last] = count * sums[MOVES]
                stages.sent[t, first, last] = sums[SHARED] + count * sums[EACH]
    return below, above


@compiled
def lightest_stages(
    stages: StageArrays,
    borders: Floats,
    prices: Floats,
    per_s: float,
    per_moved_s: float,
    per_traffic: float,
    most: Ints,
    to_go: Floats,
    others: Floats,
    last: Ints,
    follow: Ints,
) -> float:
    """Return the weight of the lightest chain of stages, of which each pays for what it needs at the given prices, and
    has at most as many units as `most` [T] says.

    `to_go`, `others`, `last` and `follow` are as of chain_kernels.lightest_chain.
    """
    num_resources, num_layers = stages.end.shape
    to_go[num_layers] = 0.0
    others[num_layers] = 0.0
    for first in range(num_layers - 1, -1, -1):
        for t in range(num_resources):
            best = np.inf
            for b in range(first, stages.end[t, first]):
                if stages.counts[t, first, b] > most[t]:
                    break  # with more layers it needs no fewer units
                weight = (
                    prices[t] * stages.counts[t, first, b]
                    + per_s * stages.micro[t, first, b]
                    + per_moved_s * stages.moved[t, first, b]
                    + per_traffic * stages.sent[t, first, b]
                    + others[b + 1, t]
                )
                if weight < best:
                    best = weight
                    last[first, t] = b
            to_go[first, t] = best
        for t in range(num_resources):
            others[first, t] = np.inf
            for s in range(num_resources):
                weight = to_go[first, s] + per_traffic * borders[first, t, s]
                if s != t and weight < others[first, t]:
                    others[first, t] = weight
                    follow[first, t] = s
    return float(to_go[0].min())


class Stages:
    """The table of one number of lanes and one z. `below` and `above` are the breakpoints beside z."""

    def __init__(self, given: KernelInputs, lanes: int, z: float) -> None:
        num_resources, num_layers = given.terms.shape[:2]
        shape = (num_resources, num_layers, num_layers)
        self.arrays = StageArrays(
            np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape[:2], np.int64)
        )
        self._borders = given.borders
        self.below, self.above = fill_stages(given, lanes, z, self.arrays)
        self._last, self._follow = (np.zeros((num_layers + 1, num_resources), np.int64) for _ in range(2))
        self.least_fill_s = self.lightest(np.zeros(num_resources), 1.0, 0.0, 0.0, given.limits)[0]

    def lightest(
        self, prices: Floats, per_s: float, per_moved_s: float, per_traffic: float, most: Ints
    ) -> tuple[float, Schedules | None, Floats]:
        """Return the weight of the lightest chain, its schedule or None if there is none, and what each state has to go
        [N + 1, T]: the least weight of the layers from j on, after a stage on t.
        """
        to_go, others = np.empty(self._last.shape), np.empty(self._last.shape)
        weight = lightest_stages(
            self.arrays, self._borders, prices, per_s, per_moved_s, per_traffic, most,
            to_go, others, self._last, self._follow,
        )  # fmt: skip
        if weight == np.inf:
            return weight, None, others
        schedule = np.empty(len(self._last) - 1, np.int16)
        read_chain(to_go, self._last, self._follow, schedule)
        return float(weight), schedule, others

    def needs(self, schedule: Schedules) -> Needs | None:
        """Return what a schedule [N] needs; None if one of its stages is too slow for z."""
        units, largest = (np.zeros(len(self.arrays.end), np.int64) for _ in range(2))
        fill_s, moved_s, traffic, before = 0.0, 0.0, 0.0, -1
        for first, last, t in runs(schedule.tolist()):
            if last >= self.arrays.end[t, first]:
                return None
            at = (t, first, last)
            count = int(self.arrays.counts[at])
            units[t] += count
            largest[t] = max(largest[t], count)
            fill_s += float(self.arrays.micro[at])
            moved_s += float(self.arrays.moved[at])
            traffic += float(self.arrays.sent[at]) + (float(self._borders[first, before, t]) if before >= 0 else 0.0)
            before = t
        return Needs(units, largest, fill_s, moved_s, traffic)


@functools.cache
def compile_all() -> None:
    """Compile every kernel, or load it from numba's cache, so that searches do not include the time for it."""
    Stages(EXAMPLE, 1, 9.0)
