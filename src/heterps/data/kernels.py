"""Compiled loops of the reader: they turn columns into rows and gather rows in shuffled order. All release the GIL."""

from __future__ import annotations

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray, OffsetArray
from heterps.hashing import mix64

_TILE = 128  # rows transposed at a time: 128 rows of 26 keys are 27 KB and stay in the first-level cache


@njit(nogil=True, cache=True)
def copy_floats(values: FloatArray, bitmap: NDArray[np.uint8], first_bit: int, out: FloatArray) -> None:
    """Set out[i] = values[i], or NaN where Arrow's validity bitmap (from bit `first_bit`) has a 0."""
    for i in range(len(values)):
        bit = first_bit + i
        out[i] = values[i] if (bitmap[bit >> 3] >> (bit & 7)) & 1 else np.nan


@njit(nogil=True, cache=True)
def interleave_floats(
    columns: FloatArray, fill: float, out: FloatArray, missing: NDArray[np.int64], infinite: NDArray[np.int64]
) -> None:
    """Set out[i, d] = columns[d, i], with `fill` for NaN, and count the NaNs and infinities of each column."""
    num_columns, num_rows = columns.shape
    for start in range(0, num_rows, _TILE):
        stop = min(start + _TILE, num_rows)
        for d in range(num_columns):
            for i in range(start, stop):
                value = columns[d, i]
                if not np.isfinite(value):
                    if np.isnan(value):
                        missing[d] += 1
                        value = np.float32(fill)
                    else:
                        infinite[d] += 1
                out[i, d] = value


@njit(nogil=True, cache=True)
def interleave_keys(columns: KeyArray, out: KeyArray) -> None:
    """Transpose: set out[i, s] = columns[s, i]."""
    num_columns, num_rows = columns.shape
    for start in range(0, num_rows, _TILE):
        stop = min(start + _TILE, num_rows)
        for s in range(num_columns):
            for i in range(start, stop):
                out[i, s] = columns[s, i]


@njit(nogil=True, cache=True)
def place_bags(
    keys: KeyArray, starts: OffsetArray, slot: int, num_slots: int, offsets: OffsetArray, out: KeyArray
) -> None:
    """Copy the bags of one slot, which begin at `starts` in `keys`, to their places by the `offsets` of all slots."""
    for i in range(len(starts)):
        begin, end = offsets[i * num_slots + slot], offsets[i * num_slots + slot + 1]
        for k in range(end - begin):
            out[begin + k] = keys[starts[i] + k]


@njit(nogil=True, cache=True)
def pick_bags(
    keys: KeyArray, offsets: OffsetArray, num_slots: int, rows: NDArray[np.int64], lengths: OffsetArray
) -> KeyArray:
    """Return the keys of the picked rows, row by row, and write the length of each of their bags."""
    total = 0
    for j in range(len(rows)):
        total += offsets[(rows[j] + 1) * num_slots] - offsets[rows[j] * num_slots]
    picked = np.empty(total, np.uint64)
    at = 0
    for j in range(len(rows)):
        first = rows[j] * num_slots
        for s in range(num_slots):
            lengths[j * num_slots + s] = offsets[first + s + 1] - offsets[first + s]
        for k in range(offsets[first], offsets[first + num_slots]):
            picked[at] = keys[k]
            at += 1
    return picked


@njit(nogil=True, cache=True)
def permutation(size: int, seed: np.uint64) -> NDArray[np.int64]:
    """Return a permutation of the numbers below `size` (< 2**32), a pure function of (size, seed) on every machine."""
    order = np.arange(size)
    for i in range(size - 1, 0, -1):
        high = mix64(seed + uint64(i)) >> uint64(32)
        j = np.int64((high * uint64(i + 1)) >> uint64(32))
        order[i], order[j] = order[j], order[i]
    return order
