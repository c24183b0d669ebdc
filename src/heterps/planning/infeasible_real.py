"""Explain why no plan fits real machines: what is short of memory, in bytes, and what rounds reach at most."""

from __future__ import annotations

import math
import time

import numpy as np

from heterps.planning.cost import Problem
from heterps.planning.optimum import find_cheapest, with_floor
from heterps.planning.plan import Plan
from heterps.planning.provisioners.exact import exact
from heterps.planning.real import GB, Conditions, memory_bytes
from heterps.planning.schedulers.exact import exact_scheduler
from heterps.planning.tables import disk_bytes, shard_bytes, table_bytes
from heterps.ps.keys.placement import NUM_SLOTS

SEARCH_S = 1.0
"""Seconds for each of the searches that look for the highest throughput."""
CLOSE = 0.01


def memory_reason(problem: Problem) -> str | None:
    """Say which memory is too small for any plan, and what would be enough; None if it is not memory."""
    assert problem.conditions is not None
    if problem.needs_servers and problem.server >= 0 and problem.least_servers > problem.limits[problem.server]:
        return _tables_reason(problem, problem.conditions)
    for number, layer in enumerate(problem.profile.layers):
        needed = {}
        for t, name in enumerate(problem.resources):
            row = problem.terms[t, number]
            if math.isfinite(float(row[1])):
                needed[name] = float(row[9]) + float(row[10]) / max(int(problem.limits[t]), 1)
        if needed and all(size > memory_bytes(problem.cluster, name) for name, size in needed.items()):
            name = min(needed, key=lambda name: needed[name] - memory_bytes(problem.cluster, name))
            return (
                f"layer {layer.name!r} takes {_size(needed[name])} of each unit, and a {name} has "
                f"{_size(memory_bytes(problem.cluster, name))}: raise its memory_gb to {_digits_up(needed[name] / 1e9)}"
                ", use smaller batches, or add a resource with more memory."
            )
    return _pipeline_reason(problem) if problem.holds_whole_batches else None


def _tables_reason(problem: Problem, conditions: Conditions) -> str:
    """Say what the largest of as many servers as there may be holds, and what it has room for."""
    name, limit = problem.cluster.server_resource, int(problem.limits[problem.server])
    held = table_bytes(problem.profile, problem.samples, conditions)
    expected = table_bytes(problem.profile, problem.samples, conditions, expected=True)
    largest = shard_bytes(problem.profile, problem.samples, conditions, limit)
    memory, disk = memory_bytes(problem.cluster, name), disk_bytes(problem.cluster)
    more = f"the limit of {name} to {problem.least_servers:,}, or " if problem.least_servers <= NUM_SLOTS else ""
    of = f"{limit:,} {name}" if limit > 1 else f"the only {name}"
    if largest.disk > disk:
        holds, has = _sizes(largest.disk, disk)
        return (
            f"the rows that are not in memory take {_size(held.disk)} in the end, the largest part on {of} {holds}, "
            f"and its disk has {has}: raise {more}its disk_gb to {_digits_up(largest.disk / GB)}, or let tables evict "
            "rows and say with --rows how many stay."
        )
    doubt = f" ({_size(expected.memory)} are expected)" if expected.memory < held.memory else ""
    if largest.memory <= memory:  # tiers leave too little memory for the index of what is on disk
        assert conditions.tiers_bytes is not None
        holds, has = _sizes(largest.rows, conditions.tiers_bytes)
        return (
            f"the rows are on disk, and to find them the largest part on {of} needs {holds} of memory, of which "
            f"tiers.memory_bytes of the job gives {has}: raise {more}that to {math.ceil(largest.rows):,}."
        )
    holds, has = _sizes(largest.memory, memory)
    return (
        f"the tables take {_size(held.memory)} in the end{doubt}, the largest part on {of} {holds}, and it has {has}: "
        f"raise {more}its memory_gb to {_digits_up(largest.memory / GB)}, or let tables evict rows and say with --rows "
        "how many stay, or keep a share of the rows on disk (tiers), and say with --rows-in-memory how many are not."
    )


def _pipeline_reason(problem: Problem) -> str | None:
    """Say what one stage of all layers needs, where only pipelines are small enough and none can be kept full."""
    needed = problem.terms[:, :, 9].sum(axis=1)
    if not _is_planned(problem) or not np.isfinite(needed).any():
        return None
    t = int(np.argmin(needed - problem.memory))
    name = problem.resources[t]
    return (
        f"all layers in one stage take {_size(needed[t])} of each {name}, which has {_size(problem.memory[t])}, and a "
        "pipeline holds in each stage the batches that are in later ones, for which memory is too small as well: raise "
        f"memory_gb of {name} to {_digits_up(needed[t] / 1e9)}, use smaller batches, or sync bsp, which divides them."
    )


def _is_planned(problem: Problem) -> bool:
    """Whether the exact search finds plans, be it such that cannot be kept full."""
    scheduler, until = exact_scheduler(problem), time.perf_counter() + SEARCH_S
    while time.perf_counter() < until and (schedules := scheduler.propose()) is not None:
        if len(schedules):
            bills = exact(problem, schedules)
            if np.isfinite(bills.usd).any():
                return True
            scheduler.feedback(schedules, bills)
    return False


def fastest_in_rounds(problem: Problem, slowest: float) -> Plan | None:
    """Find the fastest plan in rounds within the limits, to a hundredth, or None; every plan reaches `slowest`."""
    fastest, _ = find_cheapest(with_floor(problem, slowest), SEARCH_S)
    if fastest is None:
        return None
    low, high = fastest.throughput, fastest.throughput
    while low == high:  # the next floor that no plan reaches
        faster, _ = find_cheapest(with_floor(problem, low * 2), SEARCH_S)
        high = low * 2
        if faster is not None:
            fastest, low, high = faster, faster.throughput, faster.throughput
    while high > low * (1 + CLOSE):
        middle = math.sqrt(low * high)
        faster, _ = find_cheapest(with_floor(problem, middle), SEARCH_S)
        if faster is None:
            high = middle
        else:
            fastest, low = faster, faster.throughput
    return fastest


def _sizes(one: float, other: float) -> tuple[str, str]:
    """Two sizes that differ, with as many digits as it takes to see that, at least 3."""
    for digits in range(3, 16):
        if (texts := (_size(one, digits), _size(other, digits)))[0] != texts[1]:
            break
    return texts


def _size(num_bytes: float, digits: int = 3) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB")):
        if num_bytes >= unit:
            return f"{float(f'{num_bytes / unit:.{digits}g}'):,.{digits}g} {name}"
    return f"{num_bytes / 1e6:.{digits}g} MB"


def _digits_up(number: float) -> str:
    unit = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / unit - 1e-9) * unit:.6g}"
