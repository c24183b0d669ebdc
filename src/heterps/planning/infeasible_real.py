"""Explain why no plan fits real machines: what is short of memory, in bytes, and what rounds reach at most."""

from __future__ import annotations

import math
import time

import numpy as np

from heterps.planning.cost import Problem
from heterps.planning.optimum import find_cheapest, with_floor
from heterps.planning.plan import Plan
from heterps.planning.provisioners.exact import exact
from heterps.planning.real import GB, memory_bytes, table_bytes
from heterps.planning.schedulers.exact import exact_scheduler

SEARCH_S = 1.0
"""Seconds for each of the searches that look for the highest throughput."""
CLOSE = 0.01


def memory_reason(problem: Problem) -> str | None:
    """Say which memory is too small for any plan, and what would be enough; None if it is not memory."""
    assert problem.conditions is not None
    if problem.needs_servers and problem.server >= 0:
        name, limit = problem.cluster.server_resource, int(problem.limits[problem.server])
        if problem.least_servers > limit:
            held, on_disk = table_bytes(problem.profile, problem.samples, problem.conditions)
            expected = table_bytes(problem.profile, problem.samples, problem.conditions, expected=True)
            doubt = f" ({_size(expected.memory)} are expected)" if expected.memory < held else ""
            memory = memory_bytes(problem.cluster, name)
            disk = (problem.cluster.resources[name].disk_gb or math.inf) * GB
            if on_disk > limit * disk:
                return (
                    f"the rows that are not in memory take {_size(on_disk)} in the end, and the disks of {limit:,} "
                    f"{name} hold {_size(limit * disk)}: raise the limit of {name} to {problem.least_servers:,}, or "
                    f"its disk_gb to {_digits_up(on_disk / limit / GB)}, or let tables evict rows and say with --rows "
                    "how many stay."
                )
            return (
                f"the tables take {_size(held)} in the end{doubt}, and {limit:,} {name} of {_size(memory)} hold "
                f"{_size(limit * memory)}: raise the limit of {name} to {problem.least_servers:,}, or its memory_gb to "
                f"{_digits_up(held / limit / 1e9)}, or let tables evict rows and say with --rows how many stay, or "
                "keep a share of the rows on disk (tiers), and say with --rows-in-memory how many are not."
            )
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


def _size(num_bytes: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB")):
        if num_bytes >= unit:
            return f"{float(f'{num_bytes / unit:.3g}'):,g} {name}"
    return f"{num_bytes / 1e6:.3g} MB"


def _digits_up(number: float) -> str:
    unit = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / unit - 1e-9) * unit:.6g}"
