"""Rows: some rows of a sparse table by key, as they leave it and come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.config import Optimizer
from heterps.ps.table.optimizers import state_words

PART_ROWS = 1 << 16
"""Rows that are copied at once where a whole table is read."""


class Rows(NamedTuple):
    """Rows of a table by key: what a checkpoint keeps of it, and what moves between tables."""

    keys: KeyArray  # [n]
    values: FloatArray  # [n, dim]
    state: FloatArray  # [n, words of optimizer state]
    uses: FloatArray  # [n], at `clock`; see usage.py
    clock: NDArray[np.uint32]  # [n], of the last use

    def select(self, which: NDArray[Any] | slice) -> Rows:
        """Return the rows at these positions, or where this mask is true."""
        arrays: tuple[Any, ...] = self
        return Rows(*(array[which] for array in arrays))

    def without_state(self) -> Rows:
        """Return the rows without optimizer state, for programs that use them and do not train them."""
        return self._replace(state=self.state[:, :0])

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Return all rows of several parts."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def check_widths(rows: Rows, dim: int, optimizer: Optimizer) -> None:
    """Raise ValueError unless values and state are those of a table of this dim and optimizer."""
    num = len(rows.keys)
    expected = (num, dim), (num, state_words(optimizer, dim))
    if (rows.values.shape, rows.state.shape) != expected:
        raise ValueError(
            f"{num:,} rows of dim {dim} with {optimizer.kind} need values {list(expected[0])} and "
            f"state {list(expected[1])}, got {list(rows.values.shape)} and {list(rows.state.shape)}"
        )
