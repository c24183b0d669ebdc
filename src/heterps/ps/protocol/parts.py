"""Tables in parts of bounded size: how rows and values of any number travel, between servers and to a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps.ps.table.sparse import Rows

FloatArray = NDArray[np.float32]
PART_BYTES = 16 * 2**20
"""About as much of a table travels in one message: far less than a message may have, far more than its overhead."""


class ValuePart(NamedTuple):
    """A part of a range: values first..first+n-1 and their state [words a value, n]."""

    first: int
    values: FloatArray
    state: FloatArray


def concatenate(parts: list[Rows]) -> Rows:
    return Rows(*(np.concatenate(field) for field in zip(*parts, strict=True)))


def row_parts(rows: Rows) -> Iterator[Rows]:
    """Rows in parts of about PART_BYTES. None for none."""
    row_bytes = sum(field[:1].nbytes for field in rows)
    step = max(1, PART_BYTES // max(1, row_bytes))
    for first in range(0, len(rows.keys), step):
        yield rows.select(slice(first, first + step))  # type: ignore[arg-type]


def value_parts(first: int, values: FloatArray, state: FloatArray) -> Iterator[ValuePart]:
    """Values from `first` on and their state, [words a value, n], in parts of about PART_BYTES. None for none."""
    step = max(1, PART_BYTES // (4 * (1 + len(state))))
    for at in range(0, len(values), step):
        yield ValuePart(first + at, values[at : at + step], state[:, at : at + step])
