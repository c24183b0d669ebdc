"""Compiled kernels of labels in rounds: chains of stages with their sums and units; see round_kernels.py."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from heterps.planning.cost import Floats, Ints, KernelInputs
from heterps.planning.kernels import EXAMPLE, compiled, compiled_inline
from heterps.planning.round_kernels import EACH, MOVES, SHARED, add_layer, least_end, micro_s, round_count

RATE, FILL, MOVED, TRAFFIC = range(4)
"""Columns of the sums of a label: USD per hour, seconds of micro-batches, seconds of servers for workers' weights, and
the weight of traffic between zones."""


class RoundLabels(NamedTuple):
    """The labels of all states, as arrays; labels.py says where those of a state are."""

    sums: Floats  # [total, 4]
    units: Ints  # [total, T]
    bound: Floats  # [total]: no plan that extends the label weighs less
    before: Ints  # [total]: the label that it extends
    num: Ints  # [N + 1, T]: labels of each state


@compiled
def round_labels(
    given: KernelInputs,
    lanes: int,
    lo: float,
    hi: float,
    overhead_s: float,
    cutoff: float,
    mu: float,
    rate_to_go: Floats,
    fill_to_go: Floats,
    mixed_to_go: Floats,
    labels: RoundLabels,
) -> float:
    """Fill the states with labels of the counts for hi, in rounds that take lo; return the lowest bound dropped."""
    sums_of, units, num = labels.sums, labels.units, labels.num
    num_resources, num_layers = given.terms.shape[0], given.terms.shape[1]
    slots = sums_of.shape[0] // ((num_layers + 1) * num_resources)
    sums = np.empty(9)
    dropped = np.inf
    num[:] = 0
    num[0, 0] = 1
    sums_of[0] = 0.0
    units[0] = 0
    labels.bound[0], labels.before[0] = 0.0, -1
    for first in range(num_layers):
        for t in range(num_resources):
            for last in range(first, num_layers):
                add_layer(sums, given.terms[t, last], last == first, last == 0)
                count = round_count(given, t, sums, lanes, hi)
                if count > given.limits[t]:
                    break
                usd, micro, moved = given.prices[t] * count, micro_s(sums, lanes), count * sums[MOVES]
                sent = sums[SHARED] + count * sums[EACH]
                start = ((last + 1) * num_resources + t) * slots
                for s in range(num_resources):
                    if s == t and first > 0:
                        continue
                    source = (first * num_resources + s) * slots
                    for label in range(source, source + num[first, s]):
                        if units[label, t] + count > given.limits[t]:
                            continue
                        traffic = sums_of[label, TRAFFIC] + sent + given.borders[first, s, t]
                        least = traffic + least_end(
                            given,
                            lo + overhead_s + sums_of[label, FILL] + micro,
                            sums_of[label, RATE] + usd,
                            given.server_s + sums_of[label, MOVED] + moved,
                            mu,
                            rate_to_go[last + 1],
                            fill_to_go[last + 1],
                            mixed_to_go[last + 1],
                        )
                        if least >= cutoff:
                            continue
                        new = start + num[last + 1, t]
                        sums_of[new, RATE] = sums_of[label, RATE] + usd
                        sums_of[new, FILL] = sums_of[label, FILL] + micro
                        sums_of[new, MOVED] = sums_of[label, MOVED] + moved
                        sums_of[new, TRAFFIC] = traffic
                        units[new] = units[label]
                        units[new, t] += count
                        labels.bound[new], labels.before[new] = least, label
                        dropped = min(dropped, admit_round(labels, last + 1, t, start, slots - 1))
    return dropped


@compiled_inline
def is_dominated(labels: RoundLabels, one: int, by: int) -> bool:
    """Tell whether label `by` has no more of anything than label `one`."""
    for i in range(4):
        if labels.sums[by, i] > labels.sums[one, i]:
            return False
    for t in range(labels.units.shape[1]):  # noqa: SIM110 - numba compiles no generator
        if labels.units[by, t] > labels.units[one, t]:
            return False
    return True


@compiled
def admit_round(labels: RoundLabels, layer: int, t: int, start: int, width: int) -> float:
    """Add the new label behind those of state (layer, t); return the bound of a label dropped for lack of a slot."""
    bound, num = labels.bound, labels.num
    new = start + num[layer, t]
    slot = start
    while slot < start + num[layer, t]:
        if is_dominated(labels, new, slot):
            return np.inf
        if is_dominated(labels, slot, new):
            num[layer, t] -= 1
            move_round(labels, start + num[layer, t], slot)
        else:
            slot += 1
    if num[layer, t] < width:
        move_round(labels, new, start + num[layer, t])
        num[layer, t] += 1
        return np.inf
    worst = start + int(np.argmax(bound[start : start + num[layer, t]]))
    if bound[new] >= bound[worst]:
        return float(bound[new])
    lost = bound[worst]
    move_round(labels, new, worst)
    return float(lost)


@compiled_inline
def move_round(labels: RoundLabels, source: int, target: int) -> None:
    """Copy a label to another slot."""
    labels.sums[target] = labels.sums[source]
    labels.units[target] = labels.units[source]
    labels.bound[target] = labels.bound[source]
    labels.before[target] = labels.before[source]


@functools.cache
def compile_all() -> None:
    """Compile every kernel, or load it from numba's cache, so that searches do not include the time for it."""
    ints = np.zeros((4, 1), np.int64)
    labels = RoundLabels(np.empty((4, 4)), ints, np.empty(4), np.zeros(4, np.int64), np.zeros((2, 1), np.int64))
    round_labels(EXAMPLE, 1, 1.0, 9.0, 0.0, 99.0, 1.0, np.zeros(2), np.zeros(2), np.zeros(2), labels)
