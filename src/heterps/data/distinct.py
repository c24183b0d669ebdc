"""Count distinct keys: exactly while there are few, then by a HyperLogLog sketch (Flajolet et al., 2007).

    key of 64 mixed bits = | 14 bits: a register | 50 bits: a run of zeros |
    registers[r] = longest run seen + 1          E = alpha * m**2 / sum(2.0 ** -registers)         m = 2**14 registers

The standard error is 1.04 / sqrt(m) = 0.8 %. The sketch is used above 50,000 keys only, where no correction is needed.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from heterps.arrays import KeyArray

MAX_EXACT = 50_000
_BITS = 14
_REGISTERS = 1 << _BITS
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)


class DistinctCounter:
    """Counts the distinct keys that were added, in memory of constant size."""

    def __init__(self) -> None:
        self._keys: KeyArray | None = np.empty(0, np.uint64)  # sorted; None once there are too many
        self._registers = np.zeros(_REGISTERS, np.uint8)

    def add(self, keys: KeyArray) -> None:
        if self._keys is None:
            _add(keys, self._registers)
            return
        self._keys = np.union1d(self._keys, keys)
        if len(self._keys) > MAX_EXACT:
            _add(self._keys, self._registers)
            self._keys = None

    @property
    def is_exact(self) -> bool:
        return self._keys is not None

    @property
    def count(self) -> int:
        if self._keys is not None:
            return len(self._keys)
        return round(_ALPHA * _REGISTERS**2 / float(np.sum(2.0 ** -self._registers.astype(np.float64))))


@njit(nogil=True, cache=True)
def _add(keys: KeyArray, registers: NDArray[np.uint8]) -> None:
    for i in range(len(keys)):
        register = keys[i] >> uint64(64 - _BITS)
        rest = keys[i] << uint64(_BITS)
        run = 1
        while run <= 64 - _BITS and not rest >> uint64(63):
            rest = rest << uint64(1)
            run += 1
        if run > registers[register]:
            registers[register] = run
