"""DenseTable: one flat float32 vector with its optimizer. All dense parameters of a stage lie in it side by side."""

from __future__ import annotations

from typing import get_args

import numpy as np
from numpy.typing import NDArray

from heterps.config import ConstantRate, DenseOptimizer, Optimizer, Schedule
from heterps.errors import NotFinite
from heterps.ps.table.finite import first_not_finite
from heterps.ps.table.optimizers import coefficients, initial_state, kind_of, state_words, update
from heterps.ps.table.schedules import rate_at

WHOLE = np.zeros(1, np.int64)
"""A dense table is a row that begins at its first word."""


class DenseTable:
    """`size` values and their optimizer state in one block: [values | state]. `values` is a view, not a copy."""

    def __init__(self, size: int, optimizer: Optimizer, schedule: Schedule = ConstantRate()) -> None:
        if not isinstance(optimizer, DenseOptimizer):
            *others, last = (kind.model_fields["kind"].default for kind in get_args(DenseOptimizer))
            raise ValueError(f"{optimizer.kind} is for the rows of sparse tables; use {', '.join(others)} or {last}")
        self.size = size
        self.optimizer = optimizer
        self.schedule = schedule
        self.rate = 1.0  # what the learning rate is multiplied by, beside the schedule
        self.num_pushes = 0
        self._words = np.full(size + state_words(optimizer, size), initial_state(optimizer), np.float32)
        self._words[:size] = 0.0

    @property
    def values(self) -> NDArray[np.float32]:
        return self._words[: self.size]

    @property
    def state(self) -> NDArray[np.float32]:
        return self._words[self.size :]

    def push(self, grads: NDArray[np.float32], *, samples: int | None = None) -> None:
        """Make one optimizer step with the gradient of every value.

        `samples` are those that the job had seen before; only a schedule needs them. NotFinite, and no change, where a
        gradient is NaN or infinite.
        """
        if grads.shape != (self.size,):
            raise ValueError(f"a dense table of {self.size:,} values needs as many gradients, got shape {grads.shape}")
        if (at := first_not_finite(grads)) >= 0:
            raise NotFinite(f"the gradient of value {at} is {grads[at]}: no step is made")
        factor = self.rate * rate_at(self.schedule, samples, self.num_pushes)
        self.num_pushes += 1
        numbers = coefficients(self.optimizer, self.num_pushes, factor, sparse=False)
        update(kind_of(self.optimizer), self._words, WHOLE, self.size, grads, 0, numbers)

    def restore(self, state: NDArray[np.float32], num_pushes: int) -> None:
        """Take over the optimizer state and count of a saved table of the same size and optimizer.

        ValueError, and no change, where the state is of another size.
        """
        if state.shape != self.state.shape:
            raise ValueError(f"the saved state has {state.size:,} words, this table needs {self.state.size:,}")
        self.state[:] = state
        self.num_pushes = num_pushes
