"""The bill of a plan: the throughput and the cost that its stages and servers are predicted to have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterps.planning.cost import ROUNDING, Problem, stage_terms
from heterps.planning.lanes import planned_lanes
from heterps.planning.market import cover, paid_s, stretch
from heterps.planning.plan import Plan, Stage


@dataclass(frozen=True)
class Bill:
    """The predicted throughput and cost of stages and servers."""

    throughput: float  # samples a second
    hours: float
    usd: float
    bottleneck: str
    rented: dict[str, int] | None = None  # number of each offer that is rented; None: single units
    lanes: int | None = None  # micro-batches of a batch, in rounds; else whole batches under way
    egress_usd: float | None = None  # traffic between zones, in `usd`; None: that is free


@dataclass(frozen=True)
class BillPart:
    """A part of the cost of a plan: units, traffic, disks, or what interruptions add."""

    name: str
    usd: float
    count: int | None = None  # number of units or machines; None: nothing is counted
    usd_per_hour: float | None = None  # price of all of them


def bill_parts(problem: Problem, plan: Plan) -> tuple[BillPart, ...]:
    """Divide the cost of a plan of this problem into parts that add up to it.

    In the paper's bill they are the stages and the servers; else the offers that are rented, and what is paid besides.
    """
    cluster = problem.cluster
    if problem.conditions is None or plan.rented is None:
        counted = [(problem.layer_names(s.first, s.last), s.resource, s.count) for s in plan.stages]
        counted += [("servers", plan.servers.resource, plan.servers.count)] if plan.servers.count else []
        rates = [count * cluster.resources[resource].usd_per_hour for _, resource, count in counted]
        return tuple(
            BillPart(f"{name} on {resource}", plan.hours * rate, count, rate)
            for (name, resource, count), rate in zip(counted, rates, strict=True)
        )
    market, tau, scale = problem.market, problem.profile.batch_size / plan.throughput, problem.hours_per_tau
    parts = []
    for name, count in plan.rented.items():
        j = market.names.index(name)
        each = float(market.offers.usd[j])
        parts.append(BillPart(name, count * each * paid_s(market.offers, j, tau) * scale, count, count * each))
    besides = {"traffic between zones": _traffic(problem, plan.stages), "disks of servers": problem.disk_usd * tau}
    parts += [BillPart(name, weight * scale) for name, weight in besides.items() if weight > 0]
    rest = plan.usd - math.fsum(part.usd for part in parts)
    if rest > plan.usd * 1e-9:
        parts.append(BillPart("interruptions", rest))
    return tuple(parts)


def bill(problem: Problem, stages: Sequence[Stage], num_servers: int) -> Bill:
    """Compute the bill of stages that cover the layers in order, whether or not they meet floor and limits."""
    slowest_s, bottleneck, lanes = _slowest(problem, stages, num_servers)
    throughput = problem.profile.batch_size / slowest_s
    if problem.throughput * (1 - 2 * ROUNDING) <= throughput < problem.throughput:
        throughput = problem.throughput  # met, but for rounding: see tau_max
    return bill_at(problem, stages, num_servers, throughput, bottleneck, lanes)


def bill_at(
    problem: Problem,
    stages: Sequence[Stage],
    num_servers: int,
    throughput: float,
    bottleneck: str = "",
    lanes: int | None = None,
) -> Bill:
    """Compute what stages and servers cost if they reach this throughput, as a run measured it or as predicted."""
    used = [0] * len(problem.resources)
    for stage in stages:
        used[problem.resources.index(stage.resource)] += stage.count
    if problem.server_s > 0 or (problem.in_rounds and problem.needs_servers):
        used[problem.server] += num_servers
    hours = problem.samples * problem.epochs / throughput / 3600
    if problem.conditions is None:
        rate = math.fsum(float(price) * count for price, count in zip(problem.prices, used, strict=True))
        return Bill(throughput, hours, hours * rate, bottleneck)
    offers = problem.market.offers
    taken, traffic = np.zeros(len(offers.usd), np.int64), _traffic(problem, stages)
    tau = problem.profile.batch_size / throughput
    weight = cover(offers, np.array(used, np.int64), tau, traffic + problem.disk_usd * tau, taken)
    longer = stretch(float(offers.risk @ taken))
    start_h = max((float(offers.started[j]) for j in np.flatnonzero(taken)), default=0.0) * problem.hours_per_tau
    rented = {name: int(count) for name, count in zip(problem.market.names, taken, strict=True) if count}
    scale = problem.hours_per_tau
    egress_usd = traffic * scale if problem.pays_egress else None
    return Bill(throughput, hours * longer + start_h, weight * scale, bottleneck, rented, lanes, egress_usd)


def _slowest(problem: Problem, stages: Sequence[Stage], num_servers: int) -> tuple[float, str, int | None]:
    """Return the seconds that a batch takes, what takes them, and the lanes."""
    if problem.in_rounds:
        from heterps.planning.rounds import round_of

        seconds, lanes, bottleneck = round_of(problem, stages, num_servers)
        return seconds, bottleneck, lanes
    slowest_s, bottleneck = 0.0, ""
    if problem.server_s > 0:
        slowest_s, bottleneck = problem.server_s / num_servers, f"servers on {problem.cluster.server_resource}"
    for stage in stages:
        terms = stage_terms(problem, stage.first, stage.last, problem.resources.index(stage.resource))
        if terms.busy_s(stage.count) > slowest_s:
            slowest_s = terms.busy_s(stage.count)
            side = "compute" if terms.compute_s(stage.count) >= terms.comm_s(stage.count) else "communication"
            bottleneck = f"{problem.layer_names(stage.first, stage.last)} on {stage.resource} ({side})"
    takes_whole = problem.conditions is not None and problem.conditions.takes_whole_batches
    return slowest_s, bottleneck, planned_lanes(problem, stages) if takes_whole else None


def _traffic(problem: Problem, stages: Sequence[Stage]) -> float:
    """Return the weight of the traffic between zones: see egress.py."""
    on = [problem.resources.index(stage.resource) for stage in stages]
    weight = math.fsum(
        float(problem.borders[stage.first, before, t])
        for stage, (before, t) in zip(stages[1:], itertools.pairwise(on), strict=True)
    )
    for stage, t in zip(stages, on, strict=True):
        shared, each = problem.terms[t, stage.first : stage.last + 1, 14:].sum(axis=0).tolist()
        weight += shared + each * stage.count
    return weight
