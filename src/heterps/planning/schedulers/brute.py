"""Brute force: bills every schedule. It is the reference for the other methods on small problems."""

from __future__ import annotations

import numpy as np

from heterps.errors import ConfigError
from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners.base import Bills

MOST_SCHEDULES = 1 << 24
CHUNK = 1 << 15


class Brute:
    """The scheduler of method `brute`."""

    def __init__(self, problem: Problem, seed: int) -> None:  # noqa: ARG002 - nothing here is random
        self._base = len(problem.resources)
        self._num = self._base**problem.num_layers
        if self._num > MOST_SCHEDULES:
            raise ConfigError(
                f"{self._num:.3g} schedules ({problem.num_layers} layers, {self._base} resources) are too many for "
                f"method brute, which bills at most {MOST_SCHEDULES:,}. Use method exact: it finds the same plan."
            )
        self._powers = self._base ** np.arange(problem.num_layers)[::-1]
        self._next = 0
        self._best = np.inf

    def propose(self) -> Schedules | None:
        if self._next == self._num:
            return None
        numbers = np.arange(self._next, min(self._next + CHUNK, self._num))
        self._next += len(numbers)
        return (numbers[:, None] // self._powers % self._base).astype(np.int16)  # in base T, a digit a layer

    def feedback(self, schedules: Schedules, bills: Bills) -> None:  # noqa: ARG002 - the bills say it all
        self._best = min(self._best, float(bills.usd.min()))

    def bound_usd(self) -> float:
        return self._best if self._next == self._num else 0.0
