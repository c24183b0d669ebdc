"""The hash function of keys, tables and shards. Its results are stored in checkpoints: it must never change."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, inline="always")
def mix64(x: np.uint64) -> np.uint64:
    """Hash a 64-bit word by splitmix64's finaliser, a bijection: each input bit flips half of the output bits."""
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
