"""Compiled kernels of the planner: plain arrays in, plain arrays out. provisioners/ wraps them in objects.

All of them walk forwards through the layers of a stage and keep its running sums (P, A, Q, D of cost.py). All use one
fact: a station's least count k(tau), the least k with ET(k) <= tau, only grows when tau falls. The comparison uses the
same floats as ET(k), so the tau of a station with k units gives exactly k back.
"""

from __future__ import annotations

import functools
import math

import numba
import numpy as np

from heterps.planning.cost import Floats, Ints, KernelInputs, Schedules
from heterps.planning.market import Offers, cover

compiled = numba.njit(nogil=True, cache=True, error_model="numpy")
compiled_inline = numba.njit(nogil=True, cache=True, error_model="numpy", inline="always")

ROUNDING = 1e-12  # cost.ROUNDING; a literal here, because compiled code is cached and would not see it change


@compiled_inline
def busy_s(p: float, a: float, q: float, d: float, count: int) -> float:
    """Seconds for which a station with `count` units is busy with one batch: ET(k)."""
    return max(a + p / count, d + q / count)


@compiled_inline
def least_for_memory(held: float, divided: float, memory: float, limit: int) -> int:
    """Return the least count with which held + divided/count bytes fit; limit + 1 if no count up to the limit does."""
    if held + divided <= memory:
        return 1
    if divided <= 0.0 or held >= memory:
        return limit + 1
    return int(min(math.ceil(divided / (memory - held)), limit + 1.0))


@compiled
def least_count(p: float, a: float, q: float, d: float, tau: float, limit: int) -> int:
    """Return the least count with ET(count) <= tau; limit + 1 if even the limit is too slow."""
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
def real_cost_rises(given: KernelInputs, stations: Floats, resource: Ints, num: int, tau: float, best: float) -> bool:
    """Tell whether every plan faster than tau costs at least `best`, by the bound of real-valued counts.

    One station costs price * max(tau, P + P*A/(tau-A), Q + Q*D/(tau-D)), and its start-up as often as it has units:
    convex in tau, and so is the sum.
    """
    cost = 0.0
    slope = 0.0
    for i in range(num):
        price, started = given.prices[resource[i]], given.started[resource[i]]
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
        if started > 0.0:
            cost += price * started * value / tau
            slope += price * started * (rise * tau - value) / tau**2
        cost += price * value
        slope += price * rise
    return cost >= best and slope <= 0.0


@compiled
def find_stations(given: KernelInputs, schedule: Schedules, stations: Floats, resource: Ints) -> int:
    """Write P, A, Q, D, the least and the largest count, and the resource of each station, stages in order and then
    the servers; return their number.
    """
    num = -1
    num_layers = schedule.shape[0]
    held, divided = 0.0, 0.0
    for layer in range(num_layers):
        t = schedule[layer]
        row = given.terms[t, layer]
        if layer == 0 or t != schedule[layer - 1]:
            num += 1
            resource[num] = t
            stations[num, 0] = row[8] + row[0]
            stations[num, 1] = row[12] + row[1]
            stations[num, 2] = row[4] + row[2]
            stations[num, 3] = row[5] + row[3]
            held, divided = 0.0, 0.0
        else:
            for i in range(4):
                stations[num, i] += row[i]
        held += row[9]
        divided += row[10]
        if layer + 1 == num_layers or t != schedule[layer + 1]:
            stations[num, 2] += row[6]
            stations[num, 3] += row[7]
            stations[num, 4] = least_for_memory(held, divided, given.memory[t], given.limits[t])
            stations[num, 5] = given.most_workers
    num += 1
    if given.server_s > 0.0:
        resource[num] = given.server
        stations[num] = 0.0
        stations[num, 0] = given.server_s
        stations[num, 4] = given.least_servers
        stations[num, 5] = np.inf
        num += 1
    return num


@compiled
def station_count(stations: Floats, i: int, tau: float, limit: int) -> int:
    """Return the least count of station i for tau that its memory and its largest count allow; else limit + 1."""
    count = least_count(stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3], tau, limit)
    count = max(count, int(stations[i, 4]))
    return count if count <= stations[i, 5] else limit + 1


@compiled
def traffic_of(given: KernelInputs, schedule: Schedules) -> float:
    """Return the weight of a schedule's traffic between zones, but for what each worker adds in rounds."""
    weight = 0.0
    for layer in range(schedule.shape[0]):
        t = schedule[layer]
        weight += given.terms[t, layer, 14]
        if layer > 0:
            weight += given.borders[layer, schedule[layer - 1], t]
    return weight


@compiled
def weight_of(given: KernelInputs, used: Ints, slowest: float, traffic: float) -> float:
    """Return the bill of the `used` units and of disks if a batch takes `slowest` seconds, and of the traffic, in USD
    but for a constant.
    """
    besides = traffic + given.disk_usd * slowest
    if not given.linear:
        return cover(given.offers, used, slowest, besides, np.empty(given.offers.usd.shape[0], np.int64))
    weight = 0.0
    if given.started.any():
        for t in range(given.prices.shape[0]):
            weight += given.prices[t] * (slowest + given.started[t]) * used[t]
        return weight + besides
    for t in range(given.prices.shape[0]):
        weight += given.prices[t] * used[t]
    return slowest * weight + besides


@compiled
def cheapest_tau(
    given: KernelInputs,
    stations: Floats,
    resource: Ints,
    num: int,
    traffic: float,
    counts: Ints,
    used: Ints,
    busy: Floats,
) -> tuple[float, float]:
    """Return (least weight, its tau), infinite if no counts within the limits are fast enough."""
    limits = given.limits
    best, best_tau = np.inf, np.inf
    used[:] = 0
    for i in range(num):
        counts[i] = 0
        busy[i] = np.inf
    tau = given.tau_max
    step = 0
    while True:
        slowest = 0.0
        for i in range(num):
            if busy[i] > tau:  # [3]
                t = resource[i]
                p, a, q, d = stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3]
                used[t] -= counts[i]
                counts[i] = station_count(stations, i, tau, limits[t])
                used[t] += counts[i]
                if used[t] > limits[t]:  # [4]
                    return best, best_tau
                busy[i] = busy_s(p, a, q, d, counts[i])
            slowest = max(slowest, busy[i])
        weight = weight_of(given, used, slowest, traffic)
        if weight < best:  # [2]
            best, best_tau = weight, slowest
        if best <= traffic:
            return best, best_tau
        tau = slowest * (1.0 - ROUNDING)
        if given.linear and not given.started.any():
            tau = min(slowest, (best - traffic) / ((weight - traffic) / slowest)) * (1.0 - ROUNDING)
        step += 1
        if step % 4 == 0 and real_cost_rises(given, stations, resource, num, tau, best - traffic):
            return best, best_tau


@compiled
def violation_of(stations: Floats, resource: Ints, num: int, limits: Ints, tau: float, units: Floats) -> float:
    """Return how far a schedule is from feasible at tau, above 0. `units` is scratch memory.

    It is the sum of two kinds of logarithms: the ratio by which stations are too slow with any number of units, and the
    ratio by which the units of a resource exceed its limit.
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
            units[t] += max(stations[i, 4], math.ceil(p / (tau - a)), math.ceil(q / (tau - d)))
    for t in range(limits.shape[0]):
        if units[t] > limits[t]:
            violation += min(math.log(units[t] / limits[t]), far)
    return violation


@compiled
def provision_all(
    given: KernelInputs, schedules: Schedules, cost: Floats, slowest_s: Floats, counts: Ints, violation: Floats
) -> None:
    """Provision every schedule: write its least tau * rate, its tau, the counts of its stations (stages, then servers),
    and its violation of the constraints.
    """
    limits = given.limits
    most = schedules.shape[1] + 1
    stations = np.empty((most, 6))
    resource = np.empty(most, np.int64)
    busy = np.empty(max(most, limits.shape[0]))
    used = np.empty(limits.shape[0], np.int64)
    for n in range(schedules.shape[0]):
        num = find_stations(given, schedules[n], stations, resource)
        traffic = traffic_of(given, schedules[n])
        cost[n], slowest_s[n] = cheapest_tau(given, stations, resource, num, traffic, counts[n], used, busy)
        counts[n] = 0
        if cost[n] == np.inf:
            violation[n] = violation_of(stations, resource, num, limits, given.tau_max, busy)
            continue
        violation[n] = 0.0
        for i in range(num):
            counts[n, i] = station_count(stations, i, slowest_s[n], limits[resource[i]])


EXAMPLE = KernelInputs(
    np.ones((1, 1, 16)), np.ones(1), np.full(1, 4), 0, 1.0, 9.0, 1, np.full(1, np.inf), np.zeros(1), True, 1,
    Offers(np.ones((1, 1), np.int64), np.ones(1), np.full(1, 4), *(np.zeros(1) for _ in range(4))),
    9, np.zeros((1, 1, 1)), 0.0, 0.0,
)  # fmt: skip
"""The smallest problem, for compiling."""


@functools.cache
def compile_all() -> None:
    """Compile every kernel, or load it from numba's cache, so that searches do not include the time for it."""
    given, schedules = EXAMPLE, np.zeros((1, 1), np.int16)
    provision_all(given, schedules, np.empty(1), np.empty(1), np.zeros((1, 2), np.int64), np.empty(1))
