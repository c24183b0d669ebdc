"""The exact provisioner: finds the counts of units and servers with which a schedule meets the floor at least cost.

For given counts the highest throughput is the cheapest, so at the optimum some station is always busy. The kernel
`cheapest_tau` scans these points from the floor upwards; its comment draws the algorithm. In rounds some stage with
some count adds the most (round_kernels.py), and all these points are tried.
"""

from __future__ import annotations

from typing import Any

from heterps.planning import kernels, round_kernels
from heterps.planning.cost import KernelInputs, Problem, Schedules
from heterps.planning.provisioners.base import Bills, fill_bills


def exact(problem: Problem, schedules: Schedules) -> Bills:
    """Return the bills of least cost. One core computes hundreds of thousands per second, fewer in rounds."""
    if not problem.in_rounds:
        return fill_bills(kernels.provision_all, problem, schedules)

    def provision(given: KernelInputs, *arrays: Any) -> None:
        round_kernels.provision_rounds(given, problem.lanes_of, problem.overhead_s, *arrays)

    return fill_bills(provision, problem, schedules)
