"""Greedy: chooses the cheapest resource for one layer after another.

It starts with every layer on the resource that is cheapest for it alone, then goes through the layers once: each tries
all resources while the others stay, and keeps the cheapest. It needs N * T bills and misses changes of several layers.
"""

from __future__ import annotations

import numpy as np

from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.base import Unproven


class Greedy(Unproven):
    """The scheduler of method `greedy`."""

    def __init__(self, problem: Problem, seed: int) -> None:  # noqa: ARG002 - nothing here is random
        p, a, q, d = (problem.terms[:, :, i] for i in range(4))
        runs = np.isfinite(a)
        alone = np.full(a.shape, np.inf)
        np.multiply(problem.prices[:, None], np.maximum(p + a, q + d), out=alone, where=runs)
        self._schedule: Schedules = alone.argmin(axis=0).astype(np.int16)
        self._num_resources = len(problem.resources)
        self._layer = 0

    def propose(self) -> Schedules | None:
        if self._layer == len(self._schedule):
            return None
        options = np.tile(self._schedule, (self._num_resources, 1))
        options[:, self._layer] = np.arange(self._num_resources)
        return options

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        if np.isfinite(bills.usd).any():
            self._schedule = schedules[int(bills.usd.argmin())]
        self._layer += 1
