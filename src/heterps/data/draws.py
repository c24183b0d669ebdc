"""Random numbers as pure functions of (seed, row, column), or of (seed, kind, id).

Synthetic rows made from them do not depend on how they are divided into files or threads, and an id has hidden
features without a table that stores them.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from heterps.hashing import mix64

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

SQRT3 = 3.0**0.5
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: steps by it spread evenly over 64 bits
NUM_FEATURES = 4
"""Number of hidden features of an id: 64 bits give four of 16 bits each."""


def uniforms(seed: int, first_row: int, num_rows: int, num_columns: int) -> Floats:
    """Return uniform values in (0, 1) [num_columns, num_rows] for the rows from `first_row`."""
    out = np.empty((num_columns, num_rows))
    _fill_uniforms(np.uint64(seed), np.uint64(first_row), out)
    return out


def features(seed: int, kind: int, ids: Ids) -> Floats:
    """Return the hidden features [n, 4] of ids [n] of one kind (below 64): mean 0, variance 1."""
    out = np.empty((len(ids), NUM_FEATURES))
    _fill_features(np.uint64(seed), kind, ids, out)
    return out


def group_of(seed: int, kind: int, ids: Ids, num_groups: int) -> Ids:
    """Return the group, 0 to num_groups - 1, of each id of a kind."""
    share = features(seed, kind, ids)[:, 0] / (2 * SQRT3) + 0.5  # in [0, 1)
    return (share * num_groups).astype(np.int64)


def zipf_power(exponent: float) -> float:
    """Return the power of the CDF of a Zipf exponent, which is a logarithm at 1: a power next to 0 is as good."""
    return (1.0 - exponent) or 1e-6


def zipf_ranks(uniform: Floats, size: int, exponent: float) -> Ids:
    """Turn uniform values into ranks 0 to size - 1 of bounded Zipf popularity, by inverting the continuous CDF."""
    power = zipf_power(exponent)
    reach = (size + 1.0) ** power - 1.0
    ranks = np.exp(np.log1p(uniform * reach) / power).astype(np.int64) - 1
    return np.minimum(ranks, size - 1)


# --- kernels ---------------------------------------------------------------------------------------------------------


@njit(inline="always")
def bits_of(state: np.uint64, index: int) -> np.uint64:
    """Return the `index`-th 64 random bits of a state."""
    return mix64(state + uint64(index) * uint64(GOLDEN))


@njit(inline="always")
def to_uniform(bits: np.uint64) -> float:
    """Turn 64 bits into a uniform value in (0, 1), both ends excluded."""
    return (float(bits >> uint64(11)) + 0.5) * 2.0**-53


@njit(inline="always")
def quarter(bits: np.uint64, index: int) -> float:
    """Turn 16 of the 64 bits into a uniform value with mean 0 and variance 1."""
    return (float((bits >> uint64(16 * index)) & uint64(0xFFFF)) / 32768.0 - 1.0) * SQRT3


@njit(nogil=True, cache=True)
def _fill_uniforms(seed: np.uint64, first_row: np.uint64, out: Floats) -> None:
    world = mix64(seed + uint64(GOLDEN))
    for i in range(out.shape[1]):
        row = mix64(world ^ mix64(first_row + uint64(i)))
        for column in range(out.shape[0]):
            out[column, i] = to_uniform(bits_of(row, column))


@njit(nogil=True, cache=True)
def _fill_features(seed: np.uint64, kind: int, ids: Ids, out: Floats) -> None:
    world = mix64(seed + uint64(GOLDEN))
    for i in range(len(ids)):
        bits = mix64(world ^ mix64(uint64(ids[i] + 1) * uint64(64) + uint64(kind)))
        for f in range(NUM_FEATURES):
            out[i, f] = quarter(bits, f)
