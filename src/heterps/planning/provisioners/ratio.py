"""Static ratios: the paper's baselines StaRatio and StaPSRatio. Every stage gets its share of units, scaled until the
floor is met, whatever its layers need; the slowest stage decides the scale, and the others idle.

The ratios of the paper are not known. Ours are below; none suits every schedule, which is what these baselines show.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from heterps.planning.cost import Ints, Problem, Schedules
from heterps.planning.provisioners import kernels
from heterps.planning.provisioners.base import Bills, fill_bills

CPU_UNITS_PER_GPU = 6
"""A GPU server of the paper's cluster has 48 cores and 8 V100s. Any device that is not a CPU counts as a GPU."""
WORKERS_PER_SERVER = 4
"""Our assumption: a server only sums and applies what workers have computed, so it serves several of them."""


def sta_ratio(problem: Problem, schedules: Schedules) -> Bills:
    """Bills of stages in the fixed ratio, with servers that keep up with them as far as their limit goes.

    Keeps the floor and the limits. Infeasible where the ratio, scaled to the floor, exceeds a limit, though other
    counts may fit; `violation` then grows with the excess.
    """
    return fill_bills(partial(kernels.ratio_all, _shares(problem), 0), problem, schedules)


def sta_ps_ratio(problem: Problem, schedules: Schedules) -> Bills:
    """The same with the servers in a fixed ratio to the workers of all stages; too few servers scale the stages too."""
    return fill_bills(partial(kernels.ratio_all, _shares(problem), WORKERS_PER_SERVER), problem, schedules)


def _shares(problem: Problem) -> Ints:
    devices = (problem.cluster.resources[name].device for name in problem.resources)
    return np.array([CPU_UNITS_PER_GPU if device.startswith("cpu") else 1 for device in devices], dtype=np.int64)
