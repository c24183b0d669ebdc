"""How often and how lately a row was used: two words in its header, which decide what is cold.

    uses    float32   one for being created and one for each push, fading by half every `half_life` clocks
    clock   uint32    the table's clock (its count of pushes) at the last of them

Fading is lazy: a row's `uses` are those at its `clock`, and a later reader multiplies by the fade of the
clocks that have passed since. That factor is read from a short list and not computed, because every row of every push
needs it, and so that all implementations agree to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HALF_LIFE = 4096
"""Clocks after which a use counts half, by default."""

_NUM_FADES, _FADES_PER_HALF_LIFE = 1024, 32
_HALF_RANGE = np.uint32(2**31)


class Fading(NamedTuple):
    """`factors[min(age >> shift, len - 1)]` is what a use of that age still counts."""

    factors: NDArray[np.float32]
    shift: int


def make_fading(half_life: int = HALF_LIFE) -> Fading:
    shift = max(0, (half_life // _FADES_PER_HALF_LIFE).bit_length() - 1)
    ages = np.arange(_NUM_FADES, dtype=np.float64) * 2**shift
    return Fading(np.exp2(-ages / half_life).astype(np.float32), shift)


def ages_of(clocks: NDArray[np.uint32], clock: int) -> NDArray[np.uint32]:
    """Return the ages of `clocks` at `clock`; 0 for one that is ahead. The count of clocks may wrap round."""
    ages = np.uint32(clock % 2**32) - clocks
    ages[ages >= _HALF_RANGE] = 0
    return ages


def faded(uses: NDArray[np.float32], clocks: NDArray[np.uint32], clock: int, fading: Fading) -> NDArray[np.float32]:
    """Return what `uses` at `clocks` still count at `clock`."""
    steps = np.minimum(ages_of(clocks, clock) >> np.uint32(fading.shift), _NUM_FADES - 1)
    left: NDArray[np.float32] = uses * fading.factors[steps]
    return left
