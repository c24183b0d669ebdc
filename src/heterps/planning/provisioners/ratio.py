"""Static ratios: the paper's baselines StaRatio and StaPSRatio.

Every stage gets a fixed share of units, whatever its layers need, scaled until the floor is met; the slowest stage
decides the scale, and the others idle. The paper does not give its ratios. Ours are below; no ratio suits every
schedule, which is what these baselines show.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from heterps.devices import is_cpu
from heterps.planning.cost import Ints, Problem, Schedules
from heterps.planning.provisioners import kernels
from heterps.planning.provisioners.base import Bills, fill_bills

CPU_UNITS_PER_GPU = 6
"""Ratio of CPU units to GPU units, as in the paper's GPU servers (48 cores, 8 V100s). Non-CPU devices count as GPUs."""
WORKERS_PER_SERVER = 4
"""Assumed ratio of workers to servers: a server only sums and applies gradients, so it serves several workers."""


def sta_ratio(problem: Problem, schedules: Schedules) -> Bills:
    """Return the bills of stages in the fixed ratio, with as many servers as they need, up to the limit.

    A schedule is infeasible if the ratio, scaled to the floor, exceeds a limit, even if other counts would fit;
    `violation` then grows with the excess.
    """
    return fill_bills(partial(kernels.ratio_all, _shares(problem), 0), problem, schedules)


def sta_ps_ratio(problem: Problem, schedules: Schedules) -> Bills:
    """Return the bills of stages and servers in a fixed ratio; if servers are too few, the stages are scaled too."""
    return fill_bills(partial(kernels.ratio_all, _shares(problem), WORKERS_PER_SERVER), problem, schedules)


def _shares(problem: Problem) -> Ints:
    devices = (problem.cluster.resources[name].device for name in problem.resources)
    return np.array([CPU_UNITS_PER_GPU if is_cpu(device) else 1 for device in devices], dtype=np.int64)
