"""The one hash function of keys, tables and shards. What it gives is stored in checkpoints: it must never change."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, inline="always")
def mix64(x: np.uint64) -> np.uint64:
    """A bijection of the 64-bit words that changes half of the bits for each bit changed (splitmix64's finaliser)."""
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
