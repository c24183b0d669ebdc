"""Compiled kernels of the provisioners that are not exact.

They build on those of the planner (planning/kernels.py) and share its arguments: stations [num, 6] of P, A, Q, D, the
least and the largest count, the resource of each station, and the prices and limits of the resources.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from heterps.planning.cost import Floats, Ints, KernelInputs, Schedules
from heterps.planning.kernels import (
    EXAMPLE,
    busy_s,
    compiled,
    find_stations,
    least_count,
    station_count,
    traffic_of,
    violation_of,
    weight_of,
)


@compiled
def set_counts(
    stations: Floats, resource: Ints, num: int, limits: Ints, tau: float, counts: Ints, used: Ints
) -> tuple[bool, float]:
    """Write the least counts for tau and the units `used` of each resource.

    Returns whether they are within the limits, and the seconds of the slowest station. If they are not, the arrays are
    filled only in part.
    """
    used[:] = 0
    slowest = 0.0
    for i in range(num):
        t = resource[i]
        p, a, q, d = stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3]
        counts[i] = station_count(stations, i, tau, limits[t])
        used[t] += counts[i]
        if used[t] > limits[t]:
            return False, np.inf
        slowest = max(slowest, busy_s(p, a, q, d, counts[i]))
    return True, slowest


# --- newton ----------------------------------------------------------------------------------------------------------
#
#     real-valued cost F(tau), convex       1. nothing fits at tau_max: infeasible, for smaller tau need more
#      |  \                        /        2. Newton's method on the slope g = F' finds the tau of the least F, between
#      |   \                   __/             the seconds that no units divide and tau_max
#      |     \__          __--              3. whole counts at that tau exceed a limit: up to the least tau that fits
#      |         --o--o--'   |              4. round: each station in turn decides tau, with a whole count next to its
#      +-----------+--+------+--> tau          real one; the others get what that tau needs; no faster than what fits;
#        fastest     real  tau_max             the cheapest is taken
#                                           5. again from there, until nothing near is cheaper


@compiled
def slope(stations: Floats, resource: Ints, num: int, prices: Floats, tau: float) -> tuple[float, float]:
    """Return the first and second derivative (g, g') of the real-valued cost at tau, which is above every A and D.

    A station with one unit costs price * tau; any other costs the larger of price * (P + P*A/(tau-A)) and the same with
    Q and D.
    """
    first, second = 0.0, 0.0
    for i in range(num):
        p, a, q, d = stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3]
        price = prices[resource[i]]
        compute, comm = p / (tau - a), q / (tau - d)
        if compute <= 1.0 and comm <= 1.0:
            first += price
        elif compute >= comm:
            first -= price * p * a / (tau - a) ** 2
            second += 2.0 * price * p * a / (tau - a) ** 3
        else:
            first -= price * q * d / (tau - d) ** 2
            second += 2.0 * price * q * d / (tau - d) ** 3
    return first, second


@compiled
def real_minimum(stations: Floats, resource: Ints, num: int, prices: Floats, tau_max: float) -> float:
    """Find the tau of the least real-valued cost, to a millionth. Every station must meet tau_max with some count."""
    fastest, hi = 0.0, tau_max
    for i in range(num):
        fastest = max(fastest, stations[i, 1], stations[i, 3])
    lo = fastest
    if lo >= hi:  # a station without a divided part takes exactly tau_max
        return hi
    tau = hi
    for turn in range(300):
        g, rise = slope(stations, resource, num, prices, tau)
        if g > 0.0:
            hi = tau
        elif tau == tau_max:
            return tau_max
        else:
            lo = tau
        # Relative to the distance from the pole at `fastest`: near it, small steps change the cost a lot.
        least = max(1e-8 * (tau - fastest), 1e-15 * tau)
        if hi - lo <= 2.0 * least:
            break
        step = -g / rise if rise > 0.0 else np.inf
        if abs(step) < least:  # over the minimum, so that the bracket closes from both sides
            step = -least if g > 0.0 else least
        tau += step
        # g jumps where a station comes down to one unit, and the step leaves the bracket; or the steps are tiny.
        if turn % 3 == 2 or not lo < tau < hi:
            tau = (lo + hi) / 2.0
    return hi  # near the pole the cost is steep to the left of a jump, and never to the right


@compiled
def least_fitting(
    stations: Floats, resource: Ints, num: int, limits: Ints, tau: float, tau_max: float, counts: Ints, used: Ints
) -> float:
    """Find the least tau from the given one upwards whose counts are within the limits, as those of tau_max must be.

    The result is exact to a thousandth.
    """
    if set_counts(stations, resource, num, limits, tau, counts, used)[0]:
        return tau
    lo, hi = tau, tau_max
    while hi - lo > 1e-3 * hi:
        middle = (lo + hi) / 2.0
        if set_counts(stations, resource, num, limits, middle, counts, used)[0]:
            hi = middle
        else:
            lo = middle
    return hi


@compiled
def newton_tau(
    given: KernelInputs, stations: Floats, resource: Ints, num: int, traffic: float, counts: Ints, used: Ints
) -> tuple[float, float]:
    """Return (weight, tau) of the counts rounded from the real-valued optimum; infinite if nothing fits."""
    prices, limits, tau_max = given.prices, given.limits, given.tau_max
    fits, best_tau = set_counts(stations, resource, num, limits, tau_max, counts, used)
    if not fits:  # [1]
        return np.inf, np.inf
    best = weight_of(given, used, best_tau, traffic)
    near = real_minimum(stations, resource, num, prices, tau_max)  # [2]
    near = least_fitting(stations, resource, num, limits, near, tau_max, counts, used)  # [3]
    too_fast = 0.0
    while True:
        before = best
        for i in range(num):  # [4]
            p, a, q, d = stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3]
            needed = station_count(stations, i, near, limits[resource[i]])
            for count in range(max(needed - 2, int(stations[i, 4])), needed + 2):
                tau = busy_s(p, a, q, d, count)
                if tau <= too_fast or tau > tau_max:
                    continue
                fits, slowest = set_counts(stations, resource, num, limits, tau, counts, used)
                if not fits:
                    too_fast = least_fitting(stations, resource, num, limits, tau, tau_max, counts, used)
                    _, slowest = set_counts(stations, resource, num, limits, too_fast, counts, used)
                if weight_of(given, used, slowest, traffic) < best:
                    best, best_tau = weight_of(given, used, slowest, traffic), slowest
        if best == before:  # [5]
            return best, best_tau
        near = best_tau


@compiled
def newton_all(
    given: KernelInputs, schedules: Schedules, cost: Floats, slowest_s: Floats, counts: Ints, violation: Floats
) -> None:
    """Provision every schedule by newton_tau; the outputs are those of planning/kernels.py's provision_all."""
    limits, tau_max = given.limits, given.tau_max
    most = schedules.shape[1] + 1
    stations, resource = np.empty((most, 6)), np.empty(most, np.int64)
    used, units = np.empty(limits.shape[0], np.int64), np.empty(limits.shape[0])
    for n in range(schedules.shape[0]):
        num = find_stations(given, schedules[n], stations, resource)
        traffic = traffic_of(given, schedules[n])
        cost[n], slowest_s[n] = newton_tau(given, stations, resource, num, traffic, counts[n], used)
        counts[n] = 0
        if cost[n] == np.inf:
            violation[n] = violation_of(stations, resource, num, limits, tau_max, units)
        else:
            violation[n] = 0.0
            set_counts(stations, resource, num, limits, slowest_s[n], counts[n], used)


# --- static ratios ---------------------------------------------------------------------------------------------------
#
#     least counts at the floor    cpu 5   gpu 2   cpu 1     1. the station that needs the most for its share of the
#     shares                           6       1       6        ratio sets the scale: gpu, 2 / 1
#     counts = scale * shares         12       2      12     2. every station gets its share at that scale, rounded up
#                                                            3. servers without a share: as many as let the stages be
#                                                               as fast as these counts are, as far as the limit goes


@compiled
def slowest_of(stations: Floats, num: int, counts: Ints) -> float:
    slowest = 0.0
    for i in range(num):
        slowest = max(slowest, busy_s(stations[i, 0], stations[i, 1], stations[i, 2], stations[i, 3], counts[i]))
    return slowest


@compiled
def ratio_counts(
    stations: Floats, resource: Ints, num: int, limits: Ints, shares: Ints, tau_max: float, counts: Ints, used: Ints
) -> bool:
    """Write counts in the ratio of the stations' `shares`, and the units used.

    Only the last station may have share 0; it gets enough units to keep up. Returns False, with meaningless counts, if
    a station cannot be fast enough within its limit.
    """
    needed, share = 0, 1
    used[:] = 0
    for i in range(num):
        limit = limits[resource[i]]
        counts[i] = station_count(stations, i, tau_max, limit)
        if counts[i] > limit:
            return False
        if counts[i] * share > needed * shares[i] and shares[i] > 0:  # [1] needed / share, in whole numbers
            needed, share = counts[i], shares[i]
    for i in range(num):
        t = resource[i]
        if shares[i] > 0:
            counts[i] = (needed * shares[i] + share - 1) // share  # [2]
            if counts[i] > stations[i, 5]:
                return False
        else:
            left = max(limits[t] - used[t], counts[i])
            fast = least_count(stations[i, 0], 0.0, 0.0, 0.0, slowest_of(stations, i, counts), left)
            counts[i] = min(max(fast, int(stations[i, 4])), left)
        used[t] += counts[i]
    return True


@compiled
def ratio_all(
    shares_of: Ints,
    workers_per_server: int,
    given: KernelInputs,
    schedules: Schedules,
    cost: Floats,
    slowest_s: Floats,
    counts: Ints,
    violation: Floats,
) -> None:
    """Provision every schedule by static ratios; the outputs are those of planning/kernels.py's provision_all.

    `shares_of` gives a stage's share by its resource. The servers get 1 / workers_per_server of the sum of the stages'
    shares, or no share if that is 0.
    """
    limits, tau_max = given.limits, given.tau_max
    most = schedules.shape[1] + 1
    stations, resource, shares = np.empty((most, 6)), np.empty(most, np.int64), np.empty(most, np.int64)
    used, units = np.empty(limits.shape[0], np.int64), np.empty(limits.shape[0])
    for n in range(schedules.shape[0]):
        num = find_stations(given, schedules[n], stations, resource)
        num_stages = num - 1 if given.server_s > 0.0 else num
        shares[num_stages] = 0
        for i in range(num_stages):
            shares[i] = shares_of[resource[i]] * max(workers_per_server, 1)
            shares[num_stages] += shares_of[resource[i]] if workers_per_server > 0 else 0
        fast = ratio_counts(stations, resource, num, limits, shares, tau_max, counts[n], used)
        over = 0.0
        for t in range(limits.shape[0]):
            if fast and used[t] > limits[t]:
                over += math.log(used[t] / limits[t])
        if over > 0.0 or not fast:
            cost[n], slowest_s[n] = np.inf, np.inf
            violation[n] = over + violation_of(stations, resource, num, limits, tau_max, units)
            counts[n] = 0
            continue
        slowest_s[n] = slowest_of(stations, num, counts[n])
        cost[n], violation[n] = weight_of(given, used, slowest_s[n], traffic_of(given, schedules[n])), 0.0
        counts[n, num:] = 0


@functools.cache
def compile_all() -> None:
    """Compile every kernel, or load it from numba's cache, so that searches do not include the time for it."""
    outputs = (np.empty(1), np.empty(1), np.zeros((1, 2), np.int64), np.empty(1))
    newton_all(EXAMPLE, np.zeros((1, 1), np.int16), *outputs)
    ratio_all(np.ones(1, np.int64), 1, EXAMPLE, np.zeros((1, 1), np.int16), *outputs)
