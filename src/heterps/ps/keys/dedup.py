"""Each distinct key once: what a batch needs to ask of the servers, and how to spread the answer over the batch.

    keys     [ b  a  b  c  a ]                   inverse  [ 1  0  1  2  0 ]      (position in `unique`)
    unique   [ a | b  c ]  grouped by shard      sources  [ 1  4 | 0  2 | 3 ]    (positions in `keys`, by unique key)
    bounds   [ 0   1     3 ]                     starts   [ 0      2      4   5 ]

The rows of `unique` are pulled, `rows[inverse]` is the batch. Backward, the gradient of unique key u is the sum over
`sources[starts[u]:starts[u+1]]`, always in that order, so that sums do not depend on threads or shards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.errors import ArgumentError
from heterps.hashing import mix64
from heterps.ps.keys.placement import owners, slot_of

Positions = NDArray[np.int32]


class Lookup(NamedTuple):
    """The distinct keys of a batch, grouped by shard, and where each came from."""

    unique: KeyArray
    bounds: NDArray[np.int64]  # shard s has unique[bounds[s]:bounds[s + 1]]
    inverse: Positions
    sources: Positions
    starts: Positions


def as_keys(keys: ArrayLike) -> KeyArray:
    """Make keys a flat array of uint64; int64 keys keep their bits, so that every 64-bit value is valid in both."""
    array = np.asarray(keys)
    if array.dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
        if array.size or array.dtype.kind not in "iuf":
            raise ArgumentError(f"keys must be int64 or uint64, got {array.dtype}")
        array = array.astype(np.uint64)
    if array.ndim != 1:
        raise ArgumentError(f"keys must have one dimension, got shape {array.shape}")
    return np.ascontiguousarray(array).view(np.uint64)


def make_lookup(keys: ArrayLike, num_shards: int = 1) -> Lookup:
    """Make the lookup for a batch of `keys` (int64 or uint64, any values) over `num_shards` shards."""
    keys = as_keys(keys)
    if len(keys) >= 2**31:
        raise ValueError(f"{len(keys):,} keys in one batch; at most 2**31 - 1 are supported")
    return Lookup(*_lookup(keys, owners(num_shards), num_shards))


@njit(nogil=True, cache=True)
def _lookup(keys, owners, num_shards):  # type: ignore[no-untyped-def]
    n = len(keys)
    size = 16
    while size < 2 * n:
        size *= 2
    shift = np.uint64(64)
    while (np.uint64(1) << (np.uint64(64) - shift)) < np.uint64(size):
        shift -= np.uint64(1)
    slots = np.zeros(size, np.int32)  # 1 + number of the key in `seen`; 0 is empty
    seen = np.empty(n, np.uint64)
    shards = np.empty(n, np.int32)
    counts = np.zeros(n, np.int32)
    inverse = np.empty(n, np.int32)
    bounds = np.zeros(num_shards + 1, np.int64)
    num_seen = 0
    for i in range(n):
        key = keys[i]
        hashed = mix64(key)
        at = np.int64(hashed >> shift)
        while slots[at] != 0 and seen[slots[at] - 1] != key:
            at = (at + 1) & (size - 1)
        if slots[at] == 0:
            seen[num_seen] = key
            shards[num_seen] = owners[slot_of(hashed)]
            bounds[shards[num_seen] + 1] += 1
            num_seen += 1
            slots[at] = num_seen
        number = slots[at] - 1
        inverse[i] = number
        counts[number] += 1

    for s in range(num_shards):
        bounds[s + 1] += bounds[s]
    fill = bounds[:num_shards].copy()
    place = np.empty(num_seen, np.int32)  # number in `seen` to position in `unique`
    unique = np.empty(num_seen, np.uint64)
    starts = np.zeros(num_seen + 1, np.int32)
    for number in range(num_seen):
        position = fill[shards[number]]
        fill[shards[number]] += 1
        place[number] = position
        unique[position] = seen[number]
        starts[position + 1] = counts[number]
    for u in range(num_seen):
        starts[u + 1] += starts[u]
    cursor = starts[:num_seen].copy()
    sources = np.empty(n, np.int32)
    for i in range(n):
        u = place[inverse[i]]
        inverse[i] = u
        sources[cursor[u]] = i
        cursor[u] += 1
    return unique, bounds, inverse, sources, starts


@njit(nogil=True, cache=True)
def sum_rows(grads: FloatArray, sources: Positions, starts: Positions, first: int, last: int, out: FloatArray) -> None:
    """Set `out[u]` to the sum of the gradients of unique key u, for u in first..last-1."""
    dim = np.uint64(out.shape[1])
    for u in range(np.uint64(first), np.uint64(last)):  # no slices: each would count references, which takes long
        source = np.uint64(sources[starts[u]])
        for j in range(dim):
            out[u, j] = grads[source, j]
        for k in range(np.uint64(starts[u] + 1), np.uint64(starts[u + np.uint64(1)])):
            source = np.uint64(sources[k])
            for j in range(dim):
                out[u, j] += grads[source, j]
