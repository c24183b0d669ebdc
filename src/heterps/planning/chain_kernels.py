"""Compiled kernels of the exact scheduler: chains of stages over all layers. chains.py wraps them in objects."""

from __future__ import annotations

import functools

import numpy as np

from heterps.planning.cost import UNLIMITED, Floats, Ints, KernelInputs, Schedules
from heterps.planning.kernels import (
    EXAMPLE,
    busy_s,
    compiled,
    compiled_inline,
    find_stations,
    least_count,
    least_for_memory,
    station_count,
)
from heterps.planning.market import Offers

# --- chains ----------------------------------------------------------------------------------------------------------
#
# Over an interval [lo, hi] of tau a stage costs at least
#
#     weight = price * max( lo * k(hi),  min over tau in [lo, hi] of max(tau, P + P*A/(tau-A), Q + Q*D/(tau-D)) )
#
# by whole counts on the left (k only grows towards lo) and real-valued ones on the right (convex, least at ET(1)), and
# price * k(hi) for its start-up; and at least price * k(hi) times the seconds that are paid at lo. Its traffic is added
# to either. With lo == hi == tau it is exactly price * k * (tau + start) and traffic. The lightest chain of stages,
# with neighbours on different resources,
#
#     layer     0    1    2    3    4    5
#     cpu      [======stage=====]                   to_go[j, t]: least weight of layers j.. if a stage on t starts at j
#     v100                      [====stage=====]    others[j, t]: least to_go[j, s] of s != t, which may follow a stage
#                                                   on t, with the traffic between them
#
# then bounds the cost of every schedule on the interval from below, and with lo == hi gives the best one if no limit on
# the sum of units binds.


@compiled_inline
def real_units_s(p: float, a: float, tau: float) -> float:
    """Return tau * k for the least real k >= 1 with A + P/k <= tau."""
    return p + p * a / (tau - a) if p + a > tau else tau


@compiled
def lightest_chain(
    terms: Floats,
    borders: Floats,
    prices: Floats,
    limits: Ints,
    memory: Floats,
    started: Floats,
    paid: Floats,
    lo: float,
    hi: float,
    cutoff: float,
    to_go: Floats,
    others: Floats,
    last: Ints,
    follow: Ints,
) -> float:
    """Return the weight of the lightest chain, or the cutoff if that is less: heavier chains may be left out.

    Fills `to_go` and `others` [N+1, T]. For each (j, t), `last` is the last layer of the stage that starts at j on t,
    and `follow` the resource s whose to_go[j, s] is others[j, t].
    """
    num_resources, num_layers = terms.shape[0], terms.shape[1]
    to_go[num_layers] = 0.0
    others[num_layers] = 0.0
    for first in range(num_layers - 1, -1, -1):
        for t in range(num_resources):
            p, a = terms[t, first, 8], terms[t, first, 12]
            q, d = terms[t, first, 4], terms[t, first, 5]
            held, divided, traffic = 0.0, 0.0, 0.0
            best = np.inf
            count = 1
            for b in range(first, num_layers if limits[t] > 0 else first):
                p += terms[t, b, 0]
                a += terms[t, b, 1]
                q += terms[t, b, 2]
                d += terms[t, b, 3]
                held += terms[t, b, 9]
                divided += terms[t, b, 10]
                traffic += terms[t, b, 14]
                if busy_s(p, a, q, d, count) > hi or held + divided > memory[t]:
                    count = least_count(p, a, q, d, hi, limits[t])
                    count = max(count, least_for_memory(held, divided, memory[t], limits[t]))
                    if count > limits[t]:
                        break
                sent_q, sent_d = q + terms[t, b, 6], d + terms[t, b, 7]
                needed = count
                if busy_s(p, a, sent_q, sent_d, count) > hi:
                    needed = max(least_count(p, a, sent_q, sent_d, hi, limits[t]), count)
                    if needed > limits[t]:
                        continue
                units_s = lo * needed
                if lo < hi:
                    at = min(max(p + a, sent_q + sent_d, lo), hi)
                    units_s = max(units_s, real_units_s(p, a, at), real_units_s(sent_q, sent_d, at))
                is_sent = sent_q > q or sent_d > d  # which the stage saves that has one more layer
                if prices[t] * (lo * count if is_sent else units_s) > cutoff:
                    break
                units_s = max(units_s + started[t] * needed, paid[t] * needed)
                weight = prices[t] * units_s + traffic + others[b + 1, t]
                if weight < best:
                    best = weight
                    last[first, t] = b
            to_go[first, t] = best
        for t in range(num_resources):
            others[first, t] = np.inf
            for s in range(num_resources):
                if s != t and to_go[first, s] + borders[first, t, s] < others[first, t]:
                    others[first, t] = to_go[first, s] + borders[first, t, s]
                    follow[first, t] = s
    return float(min(to_go[0].min(), cutoff))


@compiled
def refund(
    offers: Offers,
    paid: Floats,
    values: Floats,
    started: Floats,
    least: Floats,
    lo: float,
    hi: float,
    weight: float,
) -> float:
    """Return by how much units at their values cost more than all offers together that have them, at any tau in
    [lo, hi], a little more for the rounding of large sums.

    A unit costs at most value * max(tau + started, least), with what is paid at `lo` in `least` [T]; an offer at least
    usd * max(tau + its start, paid), with what is paid at `lo` in `paid` [J], and its risk times `weight`.
    """
    total = 0.0
    for j in range(offers.usd.shape[0]):
        most = 0.0
        for at in (lo, hi, min(max(paid[j] - offers.started[j], lo), hi)):  # only there, what it is above may bend down
            over, size = -offers.risk[j] * weight - offers.usd[j] * max(at + offers.started[j], paid[j]), 0.0
            for t in range(values.shape[0]):
                size += offers.units[j, t] * values[t] * max(at + started[t], least[t])
            most = max(most, over + size * (1.0 + 1e-15))
        total += most * offers.limits[j]
    return total


@compiled
def read_chain(to_go: Floats, last: Ints, follow: Ints, schedule: Schedules) -> None:
    """Write the resource of every layer [N] of the lightest chain to `schedule`."""
    t = np.argmin(to_go[0])
    first = 0
    while first < schedule.shape[0]:
        after = last[first, t] + 1
        schedule[first:after] = t
        t = follow[after, t]
        first = after


@compiled
def count_units(given: KernelInputs, schedule: Schedules, units: Ints) -> None:
    """Write the units of every resource [T] that a schedule and the servers need to meet tau_max, without limits."""
    most = schedule.shape[0] + 1
    stations, resource = np.empty((most, 6)), np.empty(most, np.int64)
    units[:] = 0
    for i in range(find_stations(given, schedule, stations, resource)):
        units[resource[i]] += station_count(stations, i, given.tau_max, UNLIMITED)


# --- labels ----------------------------------------------------------------------------------------------------------
#
# Where limits bind, the units used so far decide what may follow. A label is a chain of stages over layers 0..j-1 with
# its units of each resource, kept in a slot of its state (j, resource of its last stage):
#
#     (0, -) --stage--> (j, t) --stage--> (j', t') ... (N, t)
#                        |
#                        +-- slots: [units, weight, bound] [units, weight, bound] ...
#
# 1. Extend every label by every stage that may follow. 2. Drop labels that exceed a limit, 3. labels that cannot end
# below the cutoff even by the lightest rest (`others` of lightest_chain, at prices + multipliers), 4. labels that
# another label of the state dominates (no more weight, no more units of any resource). 5. If a state has no slot left,
# drop the label with the highest bound: the lowest bound of all dropped labels bounds what the search may have missed.


@compiled_inline
def dominates(weight: Floats, units: Ints, one: int, other: int, tracked: Ints) -> bool:
    if weight[one] > weight[other]:
        return False
    for t in tracked:  # noqa: SIM110 - numba compiles no generator
        if units[one, t] > units[other, t]:
            return False
    return True


@compiled
def admit(
    weight: Floats, bound: Floats, units: Ints, before: Ints, start: int, num: int, width: int, tracked: Ints
) -> tuple[int, float]:
    """Add the new label in slot start + num to a state, whose labels are in slots start .. start + num - 1.

    Returns the number of labels of the state, and the bound of a label dropped for lack of a slot, or infinity.
    """
    new = start + num
    slot = start
    while slot < start + num:
        if dominates(weight, units, slot, new, tracked):
            return num, np.inf
        if dominates(weight, units, new, slot, tracked):
            last = start + num - 1
            move(weight, bound, units, before, last, slot)
            num -= 1
        else:
            slot += 1
    if num < width:
        move(weight, bound, units, before, new, start + num)
        return num + 1, np.inf
    worst = start + np.argmax(bound[start : start + num])
    if bound[new] >= bound[worst]:
        return num, bound[new]
    dropped = bound[worst]
    move(weight, bound, units, before, new, worst)
    return num, dropped


@compiled_inline
def move(weight: Floats, bound: Floats, units: Ints, before: Ints, source: int, target: int) -> None:
    weight[target] = weight[source]
    bound[target] = bound[source]
    units[target] = units[source]
    before[target] = before[source]


@compiled
def extend_labels(
    terms: Floats,
    borders: Floats,
    prices: Floats,
    multipliers: Floats,
    limits: Ints,
    memory: Floats,
    started: Floats,
    most: Ints,
    tracked: Ints,
    tau: float,
    cutoff: float,
    others: Floats,
    weight: Floats,
    bound: Floats,
    units: Ints,
    before: Ints,
    num: Ints,
) -> float:
    """Fill the states with labels; return the lowest bound of a label dropped for lack of a slot, or infinity.

    `others`, bounds and the cutoff are at prices + multipliers; weights are at prices. State (j, t) has num[j, t]
    labels in slots from (j * T + t) * (width + 1); the last slot is for a new label. Label 0, in (0, 0), is the empty
    chain. before[i] is the label that i extends. Only the limits of `tracked` resources are enforced: the fewer there
    are, the more labels are dominated. A stage on t has at most most[t] units.
    """
    num_resources, num_layers = terms.shape[0], terms.shape[1]
    slots = weight.shape[0] // ((num_layers + 1) * num_resources)
    lowest_dropped = np.inf
    num[:] = 0
    num[0, 0] = 1
    weight[0], bound[0], before[0] = 0.0, 0.0, -1
    units[0] = 0
    is_tracked = np.zeros(num_resources, np.bool_)
    is_tracked[tracked] = True
    for first in range(num_layers):
        for t in range(num_resources):
            p, a = terms[t, first, 8], terms[t, first, 12]
            q, d = terms[t, first, 4], terms[t, first, 5]
            held, divided, traffic = 0.0, 0.0, 0.0
            for b in range(first, num_layers):
                p += terms[t, b, 0]
                a += terms[t, b, 1]
                q += terms[t, b, 2]
                d += terms[t, b, 3]
                held += terms[t, b, 9]
                divided += terms[t, b, 10]
                traffic += terms[t, b, 14]
                least = least_for_memory(held, divided, memory[t], most[t])
                if least > most[t] or busy_s(p, a, q, d, most[t]) > tau:
                    break
                count = max(least_count(p, a, q + terms[t, b, 6], d + terms[t, b, 7], tau, most[t]), least)
                if count > most[t]:
                    continue
                start = ((b + 1) * num_resources + t) * slots
                span = tau + started[t]
                rest = others[b + 1, t] + (prices[t] + multipliers[t]) * count * span + traffic
                for s in range(num_resources):
                    if s == t and first > 0:
                        continue
                    source = (first * num_resources + s) * slots
                    for label in range(source, source + num[first, s]):  # [1]
                        if is_tracked[t] and units[label, t] + count > limits[t]:  # [2]
                            continue
                        paid = weight[label] + rest + borders[first, s, t]
                        for r in tracked:
                            paid += multipliers[r] * units[label, r] * (tau + started[r])
                        if paid > cutoff:  # [3]
                            continue
                        new = start + num[b + 1, t]
                        weight[new] = weight[label] + prices[t] * count * span + traffic + borders[first, s, t]
                        bound[new] = paid
                        units[new] = units[label]
                        units[new, t] += count
                        before[new] = label
                        num[b + 1, t], dropped = admit(
                            weight, bound, units, before, start, num[b + 1, t], slots - 1, tracked
                        )  # [4]
                        lowest_dropped = min(lowest_dropped, dropped)  # [5]
    return lowest_dropped


@functools.cache
def compile_all() -> None:
    """Compile every kernel, or load it from numba's cache, so that searches do not include the time for it."""
    terms, prices, limits, tracked = EXAMPLE.terms, EXAMPLE.prices, EXAMPLE.limits, np.zeros(1, np.int64)
    memory, started, borders = EXAMPLE.memory, EXAMPLE.started, EXAMPLE.borders
    to_go, others = np.zeros((2, 1)), np.zeros((2, 1))
    last, follow, num = np.zeros((2, 1), np.int64), np.zeros((2, 1), np.int64), np.zeros((2, 1), np.int64)
    lightest_chain(
        terms, borders, prices, limits, memory, started, started, 9.0, 9.0, 99.0, to_go, others, last, follow
    )
    refund(EXAMPLE.offers, started, prices, started, started, 9.0, 9.0, 0.0)
    read_chain(to_go, last, follow, np.zeros(1, np.int16))
    count_units(EXAMPLE, np.zeros(1, np.int16), num[0])
    extend_labels(
        terms, borders, prices, np.zeros(1), limits, memory, started, limits, tracked, 9.0, 99.0, others,
        np.zeros(4), np.zeros(4), np.zeros((4, 1), np.int64), np.zeros(4, np.int64), num,
    )  # fmt: skip
