"""The provisioner: the counts of units and servers with which a schedule meets the floor at the least cost.

Exact. For a fixed vector of counts the cheapest throughput is the highest one, so the optimum lies where some station
is exactly busy; `kernels.cheapest_tau` scans those from the floor upwards and draws the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps.planning import kernels
from heterps.planning.cost import Floats, Ints, Problem, Schedules, bill, runs
from heterps.planning.plan import Plan, Servers, Stage


@dataclass(frozen=True)
class Bills:
    """The bills of n schedules, each provisioned at its cheapest."""

    usd: Floats  # [n], infinite where no counts within the limits meet the floor
    throughput: Floats  # [n] samples a second, 0 where infeasible
    counts: Ints  # [n, N + 1] of the stages in order, then of the servers, then 0


def provision(problem: Problem, schedules: Schedules) -> Bills:
    """`schedules`: [n, N] indices into problem.resources. One core bills hundreds of thousands a second."""
    num = len(schedules)
    cost, slowest_s = np.empty(num), np.empty(num)
    counts = np.zeros((num, problem.num_layers + 1), dtype=np.int64)
    if problem.server_s > 0 and problem.server < 0:  # servers are needed, and their resource has limit 0
        return Bills(np.full(num, np.inf), np.zeros(num), counts)
    kernels.provision_all(
        problem.terms,
        problem.prices,
        problem.limits,
        problem.server,
        problem.server_s,
        problem.tau_max,
        np.ascontiguousarray(schedules, dtype=np.int16),
        cost,
        slowest_s,
        counts,
    )
    return Bills(cost * problem.hours_per_tau, problem.profile.batch_size / slowest_s, counts)


def to_plan(problem: Problem, schedule: Schedules, counts: Ints, method: str) -> Plan:
    """The plan, with its bill, of one schedule [N] and its counts [N + 1]."""
    stages = tuple(
        Stage(first=first, last=last, resource=problem.resources[resource], count=int(count))
        for (first, last, resource), count in zip(runs(schedule.tolist()), counts.tolist(), strict=False)
    )
    num_servers = int(counts[len(stages)]) if problem.server_s > 0 else 0
    predicted = bill(problem, stages, num_servers)
    return Plan(
        method=method,
        stages=stages,
        servers=Servers(resource=problem.cluster.server_resource, count=num_servers),
        throughput=predicted.throughput,
        hours=predicted.hours,
        usd=predicted.usd,
        bottleneck=predicted.bottleneck,
    )
