"""GradientTable: what tables in memory and tables with tiers do alike with gradients that nobody has summed yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from heterps.arrays import FloatArray, KeyArray
from heterps.errors import ArgumentError
from heterps.ps.keys.dedup import Positions, as_keys, make_lookup
from heterps.ps.table.finite import require_finite


class GradientTable:
    """A table of rows of `dim` values that follow gradients."""

    dim: int

    def push(self, keys: ArrayLike, grads: ArrayLike, *, samples: int | None = None) -> None:
        """Push gradients `grads` [n, dim] of `keys` [n]: those of one key are summed, then each key makes one step.

        `samples` are those that the job had seen before this push; only a schedule needs them. NotFinite, and no
        change, where a gradient is NaN or infinite.
        """
        lookup = make_lookup(keys)
        grads = self._as_grads(grads, len(lookup.sources))
        require_finite(as_keys(keys), grads)
        self.push_sums(lookup.unique, grads, lookup.sources, lookup.starts, samples=samples)

    def push_sums(
        self, keys: KeyArray, grads: ArrayLike, sources: Positions, starts: Positions, *, samples: int | None = None
    ) -> None:
        raise NotImplementedError

    def _as_grads(self, grads: ArrayLike, n: int) -> FloatArray:
        array = np.ascontiguousarray(grads, np.float32)
        if array.shape != (n, self.dim):
            raise ArgumentError(
                f"{n} keys of a table with dim {self.dim} need gradients [{n}, {self.dim}], got {array.shape}"
            )
        return array
