"""The exact provisioner: the counts of units and servers with which a schedule meets the floor at the least cost.

For a fixed vector of counts the cheapest throughput is the highest one, so the optimum lies where some station is
exactly busy; `kernels.cheapest_tau` scans those from the floor upwards and draws the algorithm.
"""

from __future__ import annotations

import numpy as np

from heterps.planning import kernels
from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills


def exact(problem: Problem, schedules: Schedules) -> Bills:
    """Bills of the least cost. One core makes hundreds of thousands a second."""
    num = len(schedules)
    cost, slowest_s, violation = np.empty(num), np.empty(num), np.empty(num)
    counts = np.zeros((num, problem.num_layers + 1), dtype=np.int64)
    if problem.server_s > 0 and problem.server < 0:  # servers are needed, and their resource has limit 0
        return Bills(np.full(num, np.inf), np.zeros(num), counts, np.ones(num))
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
        violation,
    )
    return Bills(cost * problem.hours_per_tau, problem.profile.batch_size / slowest_s, counts, violation)
