"""Finding what is not finite: NaN and infinite gradients are refused before a table takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heterps.errors import NotFinite
from heterps.ps.table.index import kernel

if TYPE_CHECKING:
    from heterps.ps.table.rows import Rows

BLOCK = 4096
_EXPONENT = np.uint32(0x7F800000)
"""A float32 is NaN or infinite when all bits of its exponent are set."""
_LOWEST = np.uint32(0x00800000)
"""The lowest bit of the exponent. Added to an exponent whose bits are all set, it carries into the sign's place."""
_SIGN = np.uint32(31)


def first_not_finite(values: NDArray[np.float32]) -> int:
    """Return the flat position of the first value that is NaN or infinite; -1 where all are finite."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    return int(_first(flat))


def require_finite(keys: NDArray[np.uint64], grads: NDArray[np.float32]) -> None:
    """Raise NotFinite where a gradient [n, dim] of `keys` [n] is NaN or infinite; the text names the key."""
    if (at := first_not_finite(grads)) >= 0:
        raise NotFinite(f"a gradient of key {keys[at // grads.shape[1]]} is {grads.flat[at]}: none is applied")


def finite_parts(table: str, parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the parts themselves; NotFinite where a value or a word of optimizer state would spoil a checkpoint."""
    for rows in parts:
        for name, words in (("value", rows.values), ("optimizer state", rows.state)):
            if (at := first_not_finite(words)) >= 0:
                raise NotFinite(
                    f"table {table}: the row of key {rows.keys[at // words.shape[1]]} has the {name} {words.flat[at]}. "
                    "It is not saved; the checkpoint before stays the newest. Lower the learning rate, and resume "
                    "from it."
                )
        yield rows


@kernel
def _first(bits: NDArray[np.uint32]) -> int:
    for begin in range(0, len(bits), BLOCK):
        block = bits[begin : begin + BLOCK]
        carried = np.uint32(0)
        for i in range(len(block)):  # no branch and no comparison, so that it is done several values at a time
            carried |= (block[i] & _EXPONENT) + _LOWEST
        if carried >> _SIGN:
            for i in range(len(block)):
                if (block[i] & _EXPONENT) == _EXPONENT:
                    return begin + i
    return -1
