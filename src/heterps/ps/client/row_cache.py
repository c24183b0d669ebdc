"""RowCache: copies of rows in a fixed piece of memory, found by key, each with the clock that it is good up to.

    key --mix64--> set of WAYS places --compare keys--> place --> [key | stamp | uses | values]

A key has WAYS places to be in. A new row takes an empty one, or that of the row that counts the fewest uses (of equal
ones the oldest copy); the others then lose one use, so that what was hot once does not stay for ever.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.hashing import mix64

WAYS = 8
MOST_USES = 255
_EMPTY = -(2**62)  # the stamp of a place without a row: older than any clock
_kernel = njit(nogil=True, cache=True)


class _CacheBody(NamedTuple):
    keys: KeyArray  # [places]
    stamps: NDArray[np.int64]
    uses: NDArray[np.uint8]
    values: FloatArray  # [places, dim]


def least_bytes(dim: int) -> int:
    """Return what a cache of rows of `dim` values needs at least: one set of places."""
    return WAYS * (8 + 8 + 1 + 4 * dim)


class RowCache:
    """A cache of up to `memory_bytes` of rows of `dim` float32 values. No lock: one thread at a time."""

    def __init__(self, dim: int, memory_bytes: int) -> None:
        set_bytes = least_bytes(dim)
        num_places = memory_bytes // set_bytes * WAYS
        if num_places < WAYS:
            raise ValueError(f"a cache of rows of dim {dim} needs at least {set_bytes} bytes, got {memory_bytes}")
        self.dim = dim
        self._body = _CacheBody(
            np.zeros(num_places, np.uint64),
            np.full(num_places, _EMPTY, np.int64),
            np.zeros(num_places, np.uint8),
            np.zeros((num_places, dim), np.float32),
        )

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self._body)

    def get(self, keys: KeyArray, oldest: int, out: FloatArray) -> NDArray[np.bool_]:
        """Return which of `keys` have a row with a stamp of `oldest` or later; their values go to `out`."""
        hits = np.zeros(len(keys), np.bool_)
        _get(self._body, keys, oldest, out, hits)
        return hits

    def put(self, keys: KeyArray, rows: FloatArray, stamp: int) -> None:
        """Keep copies of `rows`, good up to `stamp`. A copy with a later stamp stays as it is."""
        _put(self._body, keys, rows, stamp)


@njit(nogil=True, cache=True, inline="always")
def _first_place(key: np.uint64, num_places: int) -> int:
    """Return where the set of `key` begins."""
    tag = mix64(key) >> np.uint64(32)
    return np.int64((tag * np.uint64(num_places // WAYS)) >> np.uint64(32)) * WAYS


@_kernel
def _get(cache: _CacheBody, keys: KeyArray, oldest: int, out: FloatArray, hits: NDArray[np.bool_]) -> None:
    for i in range(len(keys)):
        first = _first_place(keys[i], len(cache.keys))
        for place in range(first, first + WAYS):
            if cache.keys[place] == keys[i] and cache.stamps[place] != _EMPTY:
                if cache.uses[place] < MOST_USES:
                    cache.uses[place] += np.uint8(1)
                if cache.stamps[place] >= oldest:
                    hits[i] = True
                    for j in range(out.shape[1]):
                        out[i, j] = cache.values[place, j]
                break


@_kernel
def _put(cache: _CacheBody, keys: KeyArray, rows: FloatArray, stamp: int) -> None:
    for i in range(len(keys)):
        first = _first_place(keys[i], len(cache.keys))
        turn = np.int64(mix64(keys[i]) % np.uint64(WAYS))  # begin anywhere, or equals would fight for the first place
        chosen = first + turn
        known = False
        for way in range(turn, turn + WAYS):
            place = first + way % WAYS
            if cache.keys[place] == keys[i] and cache.stamps[place] != _EMPTY:
                chosen, known = place, True
                break
            if cache.uses[place] < cache.uses[chosen] or (
                cache.uses[place] == cache.uses[chosen] and cache.stamps[place] < cache.stamps[chosen]
            ):
                chosen = place
        if known and cache.stamps[chosen] > stamp:
            continue
        if not known:
            for place in range(first, first + WAYS):
                if cache.uses[place] > 0:
                    cache.uses[place] -= np.uint8(1)
            cache.keys[chosen] = keys[i]
            cache.uses[chosen] = 1
        cache.stamps[chosen] = stamp
        for j in range(rows.shape[1]):
            cache.values[chosen, j] = rows[i, j]
