"""What a new row's values are: a pure function of (seed, key, column), the same on every shard and in every order.

    kind       value, with x the hash of (seed, key, column)
    uniform    scale (2 u - 1), u the top 24 bits of x as a fraction
    normal     std q(u), q the quantiles of the normal distribution, by linear interpolation between 4096 for each side
    constant   value
    zero       0

The quantiles come from a table, because the logarithms and cosines of the usual formulas differ in their last bit from
one machine to the next. The table ends at 4.2 standard deviations.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

from heterps.arrays import FloatArray
from heterps.config import Constant, Initializer, Normal, Uniform, Zero
from heterps.hashing import mix64
from heterps.ps.table.index import inline, kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
NUM_QUANTILES = 4096
_UNIFORM, _NORMAL, _CONSTANT = 0, 1, 2


def kind_and_size(init: Initializer) -> tuple[int, float]:
    """Return the number that selects the initializer in the kernels, and its one parameter."""
    match init:
        case Uniform(scale=scale):
            return _UNIFORM, scale
        case Normal(std=std):
            return _NORMAL, std
        case Constant(value=value):
            return _CONSTANT, value
        case Zero():
            return _CONSTANT, 0.0


@cache
def quantiles() -> FloatArray:
    """Return the upper half of the normal distribution: entry i is exceeded with the chance i / NUM_QUANTILES / 2."""
    chances = np.arange(NUM_QUANTILES + 1) / (2 * NUM_QUANTILES)
    chances[0] = chances[1] / 8  # infinity in truth; from here the mean of the last interval is about right
    values = np.array([-NormalDist().inv_cdf(chance) for chance in chances], np.float32)
    values.setflags(write=False)
    return values


@inline
def fill(kind: int, size: np.float32, normal: FloatArray, key: np.uint64, seed: np.uint64, out: FloatArray) -> None:
    """Make the initial values of a key's row; `seed` is already mixed, `normal` are the `quantiles`.

    A loop for each kind, so that each is one that the compiler can unroll.
    """
    if kind == _CONSTANT:
        for j in range(len(out)):
            out[j] = size
        return
    hashed = mix64(key ^ seed)
    if kind == _UNIFORM:
        for j in range(len(out)):
            bits = mix64(hashed + np.uint64(j + 1) * GOLDEN) >> np.uint64(40)
            out[j] = (np.float32(bits) * np.float32(2.0**-23) - np.float32(1.0)) * size
        return
    for j in range(len(out)):
        bits = mix64(hashed + np.uint64(j + 1) * GOLDEN) >> np.uint64(40)
        place = np.int64((bits >> np.uint64(11)) & np.uint64(NUM_QUANTILES - 1))
        part = np.float32(bits & np.uint64(2047)) * np.float32(2.0**-11)
        quantile = normal[place] + part * (normal[place + 1] - normal[place])
        out[j] = -quantile * size if bits >> np.uint64(23) else quantile * size


@kernel
def fill_row(kind: int, size: np.float32, normal: FloatArray, key: np.uint64, seed: np.uint64, out: FloatArray) -> None:
    """Do as `fill`, for callers in whose loops it should not be inlined."""
    fill(kind, size, normal, key, seed, out)
