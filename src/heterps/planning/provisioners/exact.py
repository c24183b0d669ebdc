"""The exact provisioner: finds the counts of units and servers with which a schedule meets the floor at least cost.

For given counts the highest throughput is the cheapest, so at the optimum some station is always busy. The kernel
`cheapest_tau` scans these points from the floor upwards; its comment draws the algorithm.
"""

from __future__ import annotations

from heterps.planning import kernels
from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills, fill_bills


def exact(problem: Problem, schedules: Schedules) -> Bills:
    """Return the bills of least cost. One core computes hundreds of thousands per second."""
    return fill_bills(kernels.provision_all, problem, schedules)
