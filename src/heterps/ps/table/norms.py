"""Sums of squares of gradients, in float64: the norm of several arrays, tables or shards is the root of their sum."""

from __future__ import annotations

import numpy as np
from numba import njit

from heterps.arrays import FloatArray
from heterps.ps.keys.dedup import Lookup, Positions


def square_sum(values: FloatArray) -> float:
    """Return the sum of the squares of all values."""
    return float(_square_sum(np.ascontiguousarray(values).reshape(-1)))


def square_sum_by_key(lookup: Lookup, grads: FloatArray) -> float:
    """Return the sum of squares of gradients [n, dim] of all keys of a lookup, after those of each key are added up."""
    return float(_square_sum_by_key(grads, lookup.sources, lookup.starts))


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _square_sum(values: FloatArray) -> float:
    total = 0.0
    for i in range(len(values)):
        total += np.float64(values[i]) * np.float64(values[i])
    return total


@njit(nogil=True, cache=True, fastmath={"reassoc"})
def _square_sum_by_key(grads: FloatArray, sources: Positions, starts: Positions) -> float:
    summed = np.empty(grads.shape[1], np.float32)
    total = 0.0
    for u in range(len(starts) - 1):
        summed[:] = 0
        for k in range(starts[u], starts[u + 1]):
            source = sources[k]
            for j in range(len(summed)):
                summed[j] += grads[source, j]
        for j in range(len(summed)):
            total += np.float64(summed[j]) * np.float64(summed[j])
    return total
