"""Compiled kernels of the planner. Plain arrays in, plain arrays out; the objects around them are in provision.py and
schedulers/exact.py.

All of them walk the layers of a stage forwards and keep its running sums (P, A, Q, D of cost.py), and all of them use
one fact: a station's least count k(tau), the least k with ET(k) <= tau, only grows when tau falls. The comparison is
made in the very floats that ET(k) is computed in, so the tau of a station with k units gives exactly k back.
"""

from __future__ import annotations

import functools
import math

import numba
import numpy as np

from heterps.planning.cost import Floats, Ints, Schedules

compiled = numba.njit(nogil=True, cache=True, error_model="numpy")
compiled_inline = numba.njit(nogil=True, cache=True, error_model="numpy", inline="always")

ROUNDING = 1e-12  # cost.ROUNDING; a literal here, because compiled code is cached and would not see it change


@compiled_inline
def busy_s(p: float, a: float, q: float, d: float, count: int) -> float:
    """ET(k)"""
    return max(a + p / count, d + q / count)


@compiled
def least_count(p: float, a: float, q: float, d: float, tau: float, limit: int) -> int:
    """The least count with ET(count) <= tau; limit + 1 when even the limit is too slow."""
    if limit < 1:
        return limit + 1
    if p + a <= tau and q + d <= tau:
        return 1
    if busy_s(p, a, q, d, limit) > tau:
        return limit + 1
    guess = 1.0
    if p + a > tau:
        guess = p / (tau - a) if tau > a else float(limit)
    if q + d > tau:
        guess = max(guess, q / (tau - d) if tau > d else float(limit))
    count = int(min(max(math.ceil(guess), 1.0), float(limit)))
    while count > 1 and busy_s(p, a, q, d, count - 1) <= tau:
        count -= 1
    while busy_s(p, a, q, d, count) > tau:
        count += 1
    return count


# --- provisioning ----------------------------------------------------------------------------------------------------
#
# For one schedule, the counts with the least tau * rate (the bill in USD but for a constant):
#
#     rate |___                   1. start at tau_max with the least counts
#          |   |____              2. these counts are done in tau' = max ET <= tau: cost tau' * rate
#          |        |______       3. a faster plan has at least this rate, so it is cheaper than the best only below
#          |               |____     best / rate: go on just below min(tau', best / rate); counts too slow there grow
#          +--------------------  4. stop where a limit is hit (a smaller tau needs more), or where the real-valued
#            tau ->  slower          cost, a convex lower bound, is above the best and rises towards smaller tau


@compiled
def real_cost_rises(stations: Floats, prices: Floats, resource: Ints, num: int, tau: float, best: float) -> bool:
    """Whether every plan faster than tau costs at least `best`, by counts that need not be whole.

    One station costs price * max(tau, P + P*A/(tau-A), Q + Q*D/(tau-D)): convex in tau, and so is the sum.
    """
    cost = 0.0
    slope = 0.0
    for i in range(num):
        price = prices[resource[i]]
        p, a, q, d = stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3]
        value, rise = tau, 1.0
        if p + a > tau:
            if a >= tau:
                return True  # nothing is faster than tau
            value = p + p * a / (tau - a)
            rise = -p * a / (tau - a) ** 2
        if q + d > tau:
            if d >= tau:
                return True
            if q + q * d / (tau - d) > value:
                value = q + q * d / (tau - d)
                rise = -q * d / (tau - d) ** 2
        cost += price * value
        slope += price * rise
    return cost >= best and slope <= 0.0


@compiled
def find_stations(
    terms: Floats, server: int, server_s: float, schedule: Schedules, stations: Floats, resource: Ints
) -> int:
    """Writes P, A, Q, D and the resource of each station, stages in order and then the servers; returns how many."""
    num = -1
    for layer in range(schedule.shape[0]):
        t = schedule[layer]
        row = terms[t, layer]
        if layer == 0 or t != schedule[layer - 1]:
            num += 1
            resource[num] = t
            stations[num, 0] = row[0]
            stations[num, 1] = row[1]
            stations[num, 2] = row[4] + row[2]
            stations[num, 3] = row[5] + row[3]
        else:
            for i in range(4):
                stations[num, i] += row[i]
    num += 1
    if server_s > 0.0:
        resource[num] = server
        stations[num] = 0.0
        stations[num, 0] = server_s
        num += 1
    return num


@compiled
def cheapest_tau(
    stations: Floats,
    resource: Ints,
    num: int,
    prices: Floats,
    limits: Ints,
    tau_max: float,
    counts: Ints,
    used: Ints,
    busy: Floats,
) -> tuple[float, float]:
    """(least tau * rate, the tau that has it), infinite when no counts within the limits are fast enough."""
    best, best_tau = np.inf, np.inf
    used[:] = 0
    for i in range(num):
        counts[i] = 0
        busy[i] = np.inf
    tau = tau_max
    step = 0
    while True:
        slowest = 0.0
        for i in range(num):
            if busy[i] > tau:  # [3]
                t = resource[i]
                p, a, q, d = stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3]
                used[t] -= counts[i]
                counts[i] = least_count(p, a, q, d, tau, limits[t])
                used[t] += counts[i]
                if used[t] > limits[t]:  # [4]
                    return best, best_tau
                busy[i] = busy_s(p, a, q, d, counts[i])
            slowest = max(slowest, busy[i])
        rate = 0.0
        for t in range(prices.shape[0]):
            rate += prices[t] * used[t]
        if slowest * rate < best:  # [2]
            best, best_tau = slowest * rate, slowest
        if best == 0.0:
            return best, best_tau
        tau = min(slowest, best / rate) * (1.0 - ROUNDING)
        step += 1
        if step % 4 == 0 and real_cost_rises(stations, prices, resource, num, tau, best):
            return best, best_tau


@compiled
def violation_of(stations: Floats, resource: Ints, num: int, limits: Ints, tau: float, units: Floats) -> float:
    """How far a schedule is from done in tau within the limits, above 0: the sum of the logarithms by which stations
    are too slow with any number of units, and by which the units of a resource exceed its limit. `units` is scratch.
    """
    far, least = 10.0, 1e-6
    violation = least
    for t in range(limits.shape[0]):
        units[t] = 0.0
    for i in range(num):
        p, a, q, d = stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3]
        t = resource[i]
        if a >= tau or d >= tau:
            violation += min(math.log(max(a, d) / tau), far) + least
            units[t] += 1.0
        else:
            units[t] += max(1.0, math.ceil(p / (tau - a)), math.ceil(q / (tau - d)))
    for t in range(limits.shape[0]):
        if units[t] > limits[t]:
            violation += min(math.log(units[t] / limits[t]), far)
    return violation


@compiled
def provision_all(
    terms: Floats,
    prices: Floats,
    limits: Ints,
    server: int,
    server_s: float,
    tau_max: float,
    schedules: Schedules,
    cost: Floats,
    slowest_s: Floats,
    counts: Ints,
    violation: Floats,
) -> None:
    """For every schedule: least tau * rate, its tau, counts[i] = those of its stations (stages, then servers), and how
    far it is from feasible.
    """
    most = schedules.shape[1] + 1
    stations = np.empty((most, 4))
    resource = np.empty(most, np.int64)
    busy = np.empty(max(most, prices.shape[0]))
    used = np.empty(prices.shape[0], np.int64)
    for n in range(schedules.shape[0]):
        num = find_stations(terms, server, server_s, schedules[n], stations, resource)
        cost[n], slowest_s[n] = cheapest_tau(stations, resource, num, prices, limits, tau_max, counts[n], used, busy)
        counts[n] = 0
        if cost[n] == np.inf:
            violation[n] = violation_of(stations, resource, num, limits, tau_max, busy)
            continue
        violation[n] = 0.0
        for i in range(num):
            p, a, q, d = stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3]
            counts[n, i] = least_count(p, a, q, d, slowest_s[n], limits[resource[i]])


# --- exact scheduling ------------------------------------------------------------------------------------------------
#
# Over an interval [lo, hi] of tau a stage costs at least
#
#     weight = price * max( lo * k(hi),  min over tau in [lo, hi] of max(tau, P + P*A/(tau-A), Q + Q*D/(tau-D)) )
#
# by whole counts on the left (k only grows towards lo) and real ones on the right (convex, least at ET(1)). With
# lo == hi == tau it is exactly price * k * tau. The lightest chain of stages, neighbours on different resources,
#
#     layer     0    1    2    3    4    5
#     cpu      [======stage=====]                   to_go[j, t]: least weight of layers j.. if a stage on t starts at j
#     v100                      [====stage=====]    others[j, t]: least to_go[j, s] of s != t: may follow a stage on t
#
# then bounds the cost of every schedule on the interval from below, and with lo == hi gives the best one if no limit on
# the sum of units binds.


@compiled_inline
def real_units_s(p: float, a: float, tau: float) -> float:
    """tau * k for the real k >= 1 with which A + P/k <= tau."""
    return p + p * a / (tau - a) if p + a > tau else tau


@compiled
def lightest_chain(
    terms: Floats,
    prices: Floats,
    limits: Ints,
    lo: float,
    hi: float,
    cutoff: float,
    to_go: Floats,
    others: Floats,
    last: Ints,
    follow: Ints,
) -> float:
    """The weight of the lightest chain, or the cutoff if that is less: chains heavier than it may be left out.

    Fills to_go and others [N+1, T]; for each (j, t) the last layer of the stage, and in `follow` whose to_go others is.
    """
    num_resources, num_layers = terms.shape[0], terms.shape[1]
    to_go[num_layers] = 0.0
    others[num_layers] = 0.0
    for first in range(num_layers - 1, -1, -1):
        for t in range(num_resources):
            p, a = 0.0, 0.0
            q, d = terms[t, first, 4], terms[t, first, 5]
            best = np.inf
            count = 1
            for b in range(first, num_layers if limits[t] > 0 else first):
                p += terms[t, b, 0]
                a += terms[t, b, 1]
                q += terms[t, b, 2]
                d += terms[t, b, 3]
                if busy_s(p, a, q, d, count) > hi:
                    count = least_count(p, a, q, d, hi, limits[t])
                    if count > limits[t]:
                        break
                units_s = lo * count
                if lo < hi:
                    at = min(max(p + a, q + d, lo), hi)
                    units_s = max(units_s, real_units_s(p, a, at), real_units_s(q, d, at))
                if prices[t] * units_s > cutoff:
                    break
                weight = prices[t] * units_s + others[b + 1, t]
                if weight < best:
                    best = weight
                    last[first, t] = b
            to_go[first, t] = best
        for t in range(num_resources):
            others[first, t] = np.inf
            for s in range(num_resources):
                if s != t and to_go[first, s] < others[first, t]:
                    others[first, t] = to_go[first, s]
                    follow[first, t] = s
    return float(min(to_go[0].min(), cutoff))


@compiled
def read_chain(
    terms: Floats, limits: Ints, tau: float, to_go: Floats, last: Ints, follow: Ints, schedule: Schedules, units: Ints
) -> None:
    """Writes the resource of every layer [N] and the units of every resource [T] of the lightest chain."""
    units[:] = 0
    t = np.argmin(to_go[0])
    first = 0
    while first < schedule.shape[0]:
        after = last[first, t] + 1
        p, a = 0.0, 0.0
        q, d = terms[t, first, 4], terms[t, first, 5]
        for layer in range(first, after):
            schedule[layer] = t
            p += terms[t, layer, 0]
            a += terms[t, layer, 1]
            q += terms[t, layer, 2]
            d += terms[t, layer, 3]
        units[t] += least_count(p, a, q, d, tau, limits[t])
        t = follow[after, t]
        first = after


# Where limits bind, the units used so far decide what may follow. A label is a chain of stages over layers 0..j-1 with
# its units per resource, kept in the list of its state (j, resource of its last stage):
#
#     (0, -) --stage--> (j, t) --stage--> (j', t') ... (N, t)
#                        |
#                        +-- [units, weight] -> [units, weight] -> ...    none is as heavy and uses as much as another
#
# 1. Extend every label by every stage that may follow. 2. Drop what exceeds a tracked limit, 3. what cannot end below
# the cutoff even by the lightest rest (others, of lightest_chain), 4. what another label of the state dominates.
# Limits that are not tracked may be exceeded; the fewer are tracked, the fewer labels there are.


@compiled
def admit(heads: Ints, after: Ints, tracked: Ints, units: Ints, weight: Floats, new: int, j: int, t: int) -> bool:
    """Puts label `new` into the list of state (j, t) unless dominated there; unlinks those it dominates."""
    previous = -1
    label = heads[j, t]
    while label >= 0:
        less = weight[new] < weight[label]
        more = weight[new] > weight[label]
        for s in tracked:
            less = less or units[new, s] < units[label, s]
            more = more or units[new, s] > units[label, s]
        if not less:
            return False
        if more:
            previous = label
        elif previous < 0:
            heads[j, t] = after[label]
        else:
            after[previous] = after[label]
        label = after[label]
    after[new] = heads[j, t]
    heads[j, t] = new
    return True


@compiled
def extend_labels(
    terms: Floats,
    prices: Floats,
    multipliers: Floats,
    limits: Ints,
    tracked: Ints,
    tau: float,
    cutoff: float,
    others: Floats,
    units: Ints,
    weight: Floats,
    chain: Ints,
    after: Ints,
    heads: Ints,
) -> bool:
    """Fills the lists of all states; False when the arrays of labels are too short. `others` is of the lightest chains
    at prices + multipliers, and so is the cutoff; weights are at prices.

    Label 0 is the empty chain, in a column of its own of heads [N+1, T+1]. chain[i] = (label before, first layer,
    resource) of label i's last stage.
    """
    num_resources, num_layers = terms.shape[0], terms.shape[1]
    heads[:] = -1
    heads[0, num_resources] = 0
    after[0] = -1
    units[0] = 0
    weight[0] = 0.0
    is_tracked = np.zeros(num_resources, np.bool_)
    is_tracked[tracked] = True
    new = 1
    for first in range(num_layers):
        for t in range(num_resources):
            p, a = 0.0, 0.0
            q, d = terms[t, first, 4], terms[t, first, 5]
            for b in range(first, num_layers):
                p += terms[t, b, 0]
                a += terms[t, b, 1]
                q += terms[t, b, 2]
                d += terms[t, b, 3]
                count = least_count(p, a, q, d, tau, limits[t])
                if count > limits[t]:
                    break
                for s in range(num_resources + 1):
                    label = heads[first, s] if s != t else -1
                    while label >= 0:  # [1]
                        if not is_tracked[t] or units[label, t] + count <= limits[t]:  # [2]
                            if new == units.shape[0]:
                                return False
                            units[new] = units[label]
                            units[new, t] += count
                            weight[new] = weight[label] + prices[t] * count * tau
                            lightest = weight[new] + others[b + 1, t]
                            for r in tracked:
                                lightest += multipliers[r] * units[new, r] * tau
                            if lightest <= cutoff:  # [3]
                                chain[new, 0], chain[new, 1], chain[new, 2] = label, first, t
                                if admit(heads, after, tracked, units, weight, new, b + 1, t):  # [4]
                                    new += 1
                        label = after[label]
    return True


@functools.cache
def compile_all() -> None:
    """Compiles every kernel, or loads it from numba's cache, so that no search is charged for it."""
    terms, prices, limits = np.ones((1, 1, 6)), np.ones(1), np.full(1, 4)
    to_go, others, last, follow = (
        np.zeros((2, 1)),
        np.zeros((2, 1)),
        np.zeros((2, 1), np.int64),
        np.zeros((2, 1), np.int64),
    )
    counts, links = np.zeros((1, 2), np.int64), np.zeros((4, 3), np.int64)
    schedules = np.zeros((1, 1), np.int16)
    provision_all(terms, prices, limits, 0, 1.0, 9.0, schedules, np.empty(1), np.empty(1), counts, np.empty(1))
    lightest_chain(terms, prices, limits, 9.0, 9.0, 99.0, to_go, others, last, follow)
    read_chain(terms, limits, 9.0, to_go, last, follow, schedules[0], counts[0, :1])
    extend_labels(
        terms, prices, np.zeros(1), limits, np.zeros(1, np.int64), 9.0, 99.0, others,
        np.zeros((4, 1), np.int64), np.zeros(4), links, np.zeros(4, np.int64), np.zeros((2, 2), np.int64),
    )  # fmt: skip
