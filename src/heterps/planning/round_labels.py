"""Labels of plans in rounds: chains of stages over the first layers, with their sums and units.

labels.py says how labels are kept. Of each state (layer, resource of the last stage)

    1. a label is extended by every stage that may follow it, with the counts for the largest z of the box,
    2. and dropped if its units exceed a limit,
    3. if no plan that extends it is below the best bill, by the bound of round_bounds.py: what the stages so far pay at
       the multipliers' prices, and the least that the layers to come pay,
    4. or if another label of the state has no more of anything.
    5. If a state has no slot left, the label with the highest bound goes: the lowest of these is part of the proof.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from heterps.planning.cost import Floats, Ints, KernelInputs
from heterps.planning.kernels import EXAMPLE, compiled, compiled_inline
from heterps.planning.round_kernels import least_over_servers, weight_on_line
from heterps.planning.round_stages import StageArrays, Stages

FILL, MOVED, TRAFFIC = range(3)
"""Columns of the sums of a label: seconds of micro-batches, seconds of servers for workers' weights, and the weight of
traffic between zones."""


class RoundLabels(NamedTuple):
    """The labels of all states, as arrays; labels.py says where those of a state are."""

    sums: Floats  # [total, 3]
    units: Ints  # [total, T]
    paid: Floats  # [total]: what the stages pay at the prices of the multipliers, but for `moved`
    bound: Floats  # [total]: no plan that extends the label weighs less
    before: Ints  # [total]: the label that it extends
    num: Ints  # [N + 1, T]: labels of each state


class BoxOfLabels(NamedTuple):
    """What the bound of a label needs to know of the box: see round_bounds.py."""

    seconds: tuple[float, float]
    servers: tuple[int, int]
    most: Ints  # [T]: units of all stages
    longer: float  # how many times as long interruptions make the job at least
    prices: Floats  # [T]: USD per hour of a unit
    second: float  # USD per hour of a second
    per_server: float
    fixed: float  # USD per hour of what is no stage and no server
    after_most: Floats  # [N + 1, T]: what the layers to come pay at least, with the most servers
    after_fewest: Floats


@compiled
def round_labels(
    given: KernelInputs, stages: StageArrays, box: BoxOfLabels, cutoff: float, labels: RoundLabels
) -> float:
    """Fill the states with labels, and return the lowest bound dropped for lack of a slot."""
    sums, units, num = labels.sums, labels.units, labels.num
    num_resources, num_layers = stages.end.shape
    slots = sums.shape[0] // ((num_layers + 1) * num_resources)
    dropped = np.inf
    num[:] = 0
    num[0, 0] = 1
    sums[0] = 0.0
    units[0] = 0
    labels.paid[0], labels.bound[0], labels.before[0] = 0.0, 0.0, -1
    for first in range(num_layers):
        for t in range(num_resources):
            for last in range(first, stages.end[t, first]):  # [1]
                count = int(stages.counts[t, first, last])
                micro, moved = stages.micro[t, first, last], stages.moved[t, first, last]
                start = ((last + 1) * num_resources + t) * slots
                for s in range(num_resources):
                    if s == t and first > 0:
                        continue
                    source = (first * num_resources + s) * slots
                    sent = stages.sent[t, first, last] + given.borders[first, s, t] * (first > 0)
                    pays = box.prices[t] * count + box.second * micro + sent / box.seconds[1]
                    for label in range(source, source + num[first, s]):
                        if units[label, t] + count > box.most[t]:  # [2]
                            continue
                        paid, all_moved = labels.paid[label] + pays, sums[label, MOVED] + moved
                        least = label_bound(given, box, paid, all_moved, last + 1, t)
                        if least >= cutoff:  # [3]
                            continue
                        new = start + num[last + 1, t]
                        sums[new, FILL] = sums[label, FILL] + micro
                        sums[new, MOVED] = all_moved
                        sums[new, TRAFFIC] = sums[label, TRAFFIC] + sent
                        units[new] = units[label]
                        units[new, t] += count
                        labels.paid[new] = paid
                        labels.bound[new], labels.before[new] = least, label
                        dropped = min(dropped, admit_round(labels, last + 1, t, start, slots - 1))
    return dropped


@compiled_inline
def label_bound(given: KernelInputs, box: BoxOfLabels, paid: float, moved: float, layer: int, t: int) -> float:
    """Return the least weight of plans of the box that extend a label of state (layer, t)."""
    fewest = paid + box.second * moved / box.servers[0] + box.after_fewest[layer, t]
    most = paid + box.second * moved / box.servers[1] + box.after_most[layer, t]
    total, _ = least_over_servers(box.servers, fewest, most, box.per_server, box.second * given.server_s)
    return box.longer * weight_on_line(box.seconds, box.fixed + total, box.second)


@compiled_inline
def is_dominated(labels: RoundLabels, one: int, by: int) -> bool:
    """Tell whether label `by` has no more of anything than label `one`."""
    for i in range(3):
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
    while slot < start + num[layer, t]:  # [4]
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
    worst = start + int(np.argmax(bound[start : start + num[layer, t]]))  # [5]
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
    labels.paid[target] = labels.paid[source]
    labels.bound[target] = labels.bound[source]
    labels.before[target] = labels.before[source]


@functools.cache
def compile_all() -> None:
    """Compile every kernel, or load it from numba's cache, so that searches do not include the time for it."""
    ints, to_go = np.zeros((4, 1), np.int64), np.zeros((2, 1))
    labels = RoundLabels(
        np.empty((4, 3)), ints, np.empty(4), np.empty(4), np.zeros(4, np.int64), np.zeros((2, 1), np.int64)
    )
    box = BoxOfLabels((1.0, 1.0), (1, 1), EXAMPLE.limits, 1.0, np.ones(1), 1.0, 1.0, 0.0, to_go, to_go)
    round_labels(EXAMPLE, Stages(EXAMPLE, 1, 9.0).arrays, box, 99.0, labels)
