"""The contract of provisioners: functions from schedules to their bills, with the counts that they choose.

Trials on real machines have the same interface: they take schedules and return measured bills instead of predicted
ones. `schedulers.base.search` accepts either, so that a scheduler can continue to learn from measured bills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heterps.planning.bill import bill
from heterps.planning.cost import Floats, Ints, Problem, Schedules, runs
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.planning.real import Conditions


@dataclass(frozen=True)
class Bills:
    """The bills of n schedules, each with the counts that the provisioner chose."""

    usd: Floats  # [n], infinite where no counts within the limits meet the floor
    throughput: Floats  # [n] samples per second, 0 where infeasible
    counts: Ints  # [n, N + 1]: the stages in order, then the servers, then 0
    violation: Floats  # [n], 0 where feasible; otherwise above 0, and larger the further from feasible


Provisioner = Callable[[Problem, Schedules], Bills]
"""Takes a problem and schedules [n, N] of indices into problem.resources, and returns their bills."""


def fill_bills(kernel: Callable[..., None], problem: Problem, schedules: Schedules) -> Bills:
    """Run a compiled kernel with the arguments of planning/kernels.py's provision_all, and return its bills."""
    num = len(schedules)
    cost, slowest_s, violation = np.empty(num), np.empty(num), np.empty(num)
    counts = np.zeros((num, problem.num_layers + 1), dtype=np.int64)
    if problem.needs_servers and problem.server < 0:  # servers are needed, and their resource has limit 0
        return Bills(np.full(num, np.inf), np.zeros(num), counts, np.ones(num))
    kernel(problem.kernel_inputs, np.ascontiguousarray(schedules, dtype=np.int16), cost, slowest_s, counts, violation)
    return Bills(cost * problem.hours_per_tau, problem.profile.batch_size / slowest_s, counts, violation)


def to_plan(problem: Problem, schedule: Schedules, counts: Ints, method: str, provisioner: str = "exact") -> Plan:
    """Make the plan, with its bill, of one schedule [N] and its counts [N + 1]."""
    stages = tuple(
        Stage(first=first, last=last, resource=problem.resources[resource], count=int(count))
        for (first, last, resource), count in zip(runs(schedule.tolist()), counts.tolist(), strict=False)
    )
    num_servers = int(counts[len(stages)]) if problem.needs_servers else 0
    predicted, given = bill(problem, stages, num_servers), problem.conditions or Conditions()
    return Plan(
        method=method,
        provisioner=provisioner,
        batch_size=problem.profile.batch_size,
        samples=problem.samples * problem.epochs,
        model=problem.profile.model,
        layers=tuple(layer.name for layer in problem.profile.layers),
        estimated=_estimated(problem, stages),
        stages=stages,
        servers=PlannedServers(resource=problem.cluster.server_resource, count=num_servers),
        throughput=predicted.throughput,
        hours=predicted.hours,
        usd=predicted.usd,
        bottleneck=predicted.bottleneck,
        rented=predicted.rented,
        lanes=predicted.lanes,
        egress_usd=predicted.egress_usd,
        sync=given.sync.label if given.sync is not None else None,
        rows=given.rows,
        rows_in_memory=given.rows_in_memory,
    )


def _estimated(problem: Problem, stages: Sequence[Stage]) -> tuple[str, ...]:
    """Return the resources on which some stage has a layer with an estimated cost."""
    layers = problem.profile.layers
    guessed = {
        stage.resource
        for stage in stages
        if any(layer.costs[stage.resource].estimated for layer in layers[stage.first : stage.last + 1])
    }
    return tuple(name for name in problem.resources if name in guessed)
