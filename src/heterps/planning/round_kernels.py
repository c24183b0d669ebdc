"""Compiled kernels of plans in rounds (BSP): all workers share each batch, and the next begins when it is applied.

A batch is divided among L lanes; a worker of a stage with k workers has r = ceil(L/k) micro-batches of it, and holds
them all until they come back:

    stage 1   |mb|mb|mb|mb|                     T = sum of mb + z + V/n + c0 + c1 (workers - 1)
    stage 2       |m|m|m|m|                     mb   seconds of one micro-batch in a stage: (A + P/L), and its input
    servers                    |####|           z    what the slowest stage adds: the largest (r-1) mb + D + Q/k
                                                V/n  servers: rows and steps, and each worker's weights (k w)
                                                c0   the launcher's overhead, and c1 for each further worker

    Where workers add up gradients of weights among themselves (all-reduce), nothing of them goes to servers, and T is
    longer by (k-1)/k of the seconds of twice their bytes, for one stage after the other.

So for given L and z a stage has a least count, and its micro-batch, its weights' way to the servers, its units and its
traffic between zones add up along the chain of stages (round_stages.py).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from heterps.planning.cost import Floats, Ints, KernelInputs, Schedules
from heterps.planning.kernels import EXAMPLE, compiled, compiled_inline, traffic_of, weight_of

# Columns of a stage's sums: see Problem.terms.
P, A, Q, D, W, S, MOVES, REDUCED, SHARED, EACH = range(10)
SUMS = 10


@compiled_inline
def add_layer(sums: Floats, row: Floats, is_first_of_stage: bool, is_first_of_model: bool) -> None:
    """Add a layer to the sums of its stage. The data of the first layer is read once a round, other inputs come with
    every micro-batch.
    """
    if is_first_of_stage:
        sums[:] = 0.0
        sums[A] += row[12]
        if is_first_of_model:
            sums[Q] += row[4]
            sums[D] += row[5]
        else:
            sums[P] += row[4]
            sums[A] += row[5]
    sums[P] += row[0]
    sums[A] += row[1]
    sums[Q] += row[2]
    sums[D] += row[3]
    sums[W] += row[9]
    sums[S] += row[10]
    sums[MOVES] += row[11]
    sums[REDUCED] += row[13]
    sums[SHARED] += row[14]
    sums[EACH] += row[15]


@compiled_inline
def micro_s(sums: Floats, lanes: int) -> float:
    """Seconds of one micro-batch in a stage."""
    return float(sums[A] + sums[P] / lanes)


@compiled_inline
def slow_s(sums: Floats, lanes: int, count: int) -> float:
    """What a stage with `count` workers adds to a round, if it is the slowest."""
    return float((math.ceil(lanes / count) - 1) * micro_s(sums, lanes) + sums[D] + sums[Q] / count)


@compiled_inline
def workers_s(sums: Floats, count: int, worker_s: float) -> float:
    """Seconds of a round because a stage has so many workers: the launcher's overhead, and their all-reduce."""
    return float(worker_s * count + sums[REDUCED] * (count - 1) / count)


@compiled
def least_to_hold(sums: Floats, lanes: int, batch_size: int, memory: float, limit: int) -> int:
    """Return the least count whose workers hold all micro-batches that they have of a round; limit + 1 if there is
    none.
    """
    micro_bytes = sums[S] * math.ceil(batch_size / lanes) / batch_size
    if sums[W] + lanes * micro_bytes <= memory * (1.0 + 1e-12):
        return 1
    most = math.floor((memory - sums[W]) / micro_bytes * (1.0 + 1e-12)) if micro_bytes > 0.0 else 0
    return int(min(math.ceil(lanes / most), limit + 1)) if most >= 1 else limit + 1


@compiled
def round_count(given: KernelInputs, t: int, sums: Floats, lanes: int, z: float) -> int:
    """Return the least count of resource t that adds at most z and has the memory; limit + 1 if there is none."""
    limit = int(given.limits[t])
    most = min(limit, lanes)
    least = least_to_hold(sums, lanes, given.batch_size, given.memory[t], limit)
    if least > most or not slow_s(sums, lanes, most) <= z * (1.0 + 1e-12):
        return limit + 1
    low, high = least - 1, most  # high suffices
    while high - low > 1:
        middle = (low + high) // 2
        if slow_s(sums, lanes, middle) <= z * (1.0 + 1e-12):
            high = middle
        else:
            low = middle
    return high


@compiled
def cheapest_servers(
    given: KernelInputs, units: Ints, busy_s: float, served_s: float, traffic: float, best: float
) -> tuple[float, float, int]:
    """Return (weight, seconds of a round, servers) of the cheapest number of servers, if that is below `best`.

    `units` are those of all stages, `busy_s` the seconds of a round without servers, `served_s` those of one server,
    `traffic` the weight of what is sent between zones.
    """
    found, found_s, found_count = best, np.inf, 0
    if served_s <= 0.0:
        if busy_s <= given.tau_max:
            weight = weight_of(given, units, busy_s, traffic)
            if weight < best:
                return weight, busy_s, 0
        return np.inf, np.inf, 0
    if given.server < 0:
        return np.inf, np.inf, 0
    rate, started, server_usd = given.disk_usd, traffic, given.prices[given.server]
    for t in range(units.shape[0]):
        rate += given.prices[t] * units[t]
        started += given.prices[t] * units[t] * given.started[t]
    # the least (busy_s + served_s/n) * (rate + server_usd*n) over real n
    if started + (math.sqrt(busy_s * rate) + math.sqrt(served_s * server_usd)) ** 2 >= best:
        return np.inf, np.inf, 0
    all_units = units.copy()
    before = units[given.server]
    for count in range(given.least_servers, given.limits[given.server] - before + 1):
        all_units[given.server] = before + count
        if started + (rate + server_usd * count) * busy_s >= found:
            break
        seconds = busy_s + served_s / count
        if seconds > given.tau_max or started + (rate + server_usd * count) * seconds >= found:
            continue
        weight = weight_of(given, all_units, seconds, traffic)
        if weight < found:
            found, found_s, found_count = weight, seconds, count
    if found_count == 0:
        return np.inf, np.inf, 0
    return found, found_s, found_count


@compiled
def stage_sums(given: KernelInputs, schedule: Schedules, sums: Floats, resource: Ints) -> int:
    """Write the sums and the resource of each stage, and return the number of stages."""
    num = -1
    for layer in range(schedule.shape[0]):
        t = schedule[layer]
        begins = layer == 0 or t != schedule[layer - 1]
        if begins:
            num += 1
            resource[num] = t
        add_layer(sums[num], given.terms[t, layer], begins, layer == 0)
    return num + 1


@compiled
def provision_rounds(
    given: KernelInputs,
    lanes_of: Ints,
    overhead_s: float,
    schedules: Schedules,
    cost: Floats,
    seconds: Floats,
    counts: Ints,
    violation: Floats,
) -> None:
    """Provision every schedule with the cheapest lanes, counts and servers; outputs as of kernels.provision_all."""
    most = schedules.shape[1] + 1
    sums, resource = np.empty((most, SUMS)), np.empty(most, np.int64)
    trial = np.empty(most, np.int64)
    units = np.empty(given.limits.shape[0], np.int64)
    for n in range(schedules.shape[0]):
        num = stage_sums(given, schedules[n], sums, resource)
        shared = traffic_of(given, schedules[n])
        cost[n], seconds[n], violation[n] = np.inf, np.inf, 1.0
        counts[n] = 0
        for lanes in lanes_of:
            fill, served = overhead_s, 0.0
            for i in range(num):
                fill += micro_s(sums[i], lanes)
            if fill > given.tau_max:
                violation[n] = max(violation[n], 1.0 + min(math.log(fill / given.tau_max), 10.0))
                continue
            for slowest in range(num):  # each count of each stage may be the one that decides
                tried = 0
                for count in range(1, min(lanes, given.limits[resource[slowest]]) + 1):
                    share = math.ceil(lanes / count)
                    if share == tried and sums[slowest, Q] == 0.0:
                        continue
                    tried = share
                    z = slow_s(sums[slowest], lanes, count)
                    if fill + z > given.tau_max:
                        continue
                    units[:] = 0
                    served, traffic, rate = given.server_s, shared, 0.0
                    busy = fill + z - given.worker_s
                    fits = True
                    for i in range(num):
                        t = resource[i]
                        trial[i] = round_count(given, t, sums[i], lanes, z)
                        units[t] += trial[i]
                        served += trial[i] * sums[i, MOVES]
                        traffic += trial[i] * sums[i, EACH]
                        rate += given.prices[t] * trial[i]
                        busy += workers_s(sums[i], trial[i], given.worker_s)
                        fits = units[t] <= given.limits[t] and rate * (fill + z) < cost[n]
                        if not fits:
                            break
                    if not fits:
                        continue
                    weight, round_s, servers = cheapest_servers(given, units, busy, served, traffic, cost[n])
                    if weight < cost[n]:
                        cost[n], seconds[n], violation[n] = weight, round_s, 0.0
                        counts[n] = 0
                        counts[n, :num] = trial[:num]
                        counts[n, num] = servers


@compiled_inline
def least_over_servers(
    servers: tuple[int, int], fewest: float, most: float, per_server: float, per_share: float
) -> tuple[float, float]:
    """Return the least sum over all numbers n of servers in the range, and about the 1/n that has it.

    The sum is that of stages, `fewest` and `most` at the ends of the range and on the chord in 1/n between them, of
    `per_server` * n and of `per_share` / n.
    """
    first, last = 1.0 / servers[1], 1.0 / servers[0]
    slope = (fewest - most) / (last - first) if last > first else 0.0
    share = math.sqrt(per_server / (slope + per_share)) if slope + per_share > 0.0 else last
    share = min(max(share, first), last)
    return most + slope * (share - first) + per_server / share + per_share * share, share


@compiled_inline
def weight_on_line(seconds: tuple[float, float], total: float, per_s: float) -> float:
    """Return the least T * (total - per_s * T) for T in the range: it is at one of the ends."""
    shortest, longest = seconds
    return min(shortest * (total - per_s * shortest), longest * (total - per_s * longest))


@compiled
def least_beside_units(
    units: Ints,
    usd: Floats,
    rented: Floats,
    ranges: Floats,
    num_rented: tuple[Ints, Ints],
    num_units: tuple[Ints, Ints],
) -> float:
    """Return the least that offers cost more than their units at prices `rented` [T], for any number of each offer in
    its range [J], and what prices `ranges` [T] of units give back; a little less for the rounding of large sums.

    `units` [J, T] are those of an offer, `usd` [J] its price.
    """
    total, size = 0.0, 0.0
    for j in range(usd.shape[0]):
        over = usd[j]
        for t in range(rented.shape[0]):
            over -= units[j, t] * rented[t]
        paid = over * (num_rented[1][j] if over < 0.0 else num_rented[0][j])
        total, size = total + paid, size + abs(paid)
    for t in range(ranges.shape[0]):
        paid = -ranges[t] * (num_units[1][t] if ranges[t] > 0.0 else num_units[0][t])
        total, size = total + paid, size + abs(paid)
    return total - 1e-13 * size


@functools.cache
def compile_all() -> None:
    """Compile every kernel, or load it from numba's cache, so that searches do not include the time for it."""
    lanes, schedules = np.ones(1, np.int64), np.zeros((1, 1), np.int16)
    provision_rounds(EXAMPLE, lanes, 0.0, schedules, np.empty(1), np.empty(1), np.zeros((1, 2), np.int64), np.empty(1))
    least_over_servers((1, 1), 1.0, 1.0, 1.0, 1.0)
    weight_on_line((1.0, 1.0), 1.0, 1.0)
    ones, zeros = np.ones(1), np.zeros(1, np.int64)
    least_beside_units(np.ones((1, 1), np.int64), ones, ones, ones, (zeros, zeros), (zeros, zeros))
