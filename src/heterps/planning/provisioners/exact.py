"""The exact provisioner: the counts of units and servers with which a schedule meets the floor at the least cost.

For a fixed vector of counts the cheapest throughput is the highest one, so the optimum lies where some station is
exactly busy; `kernels.cheapest_tau` scans those from the floor upwards and draws the algorithm.
"""

from __future__ import annotations

from heterps.planning import kernels
from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills, fill_bills


def exact(problem: Problem, schedules: Schedules) -> Bills:
    """Bills of the least cost. One core makes hundreds of thousands a second."""
    return fill_bills(kernels.provision_all, problem, schedules)
