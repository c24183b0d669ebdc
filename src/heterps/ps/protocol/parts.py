"""Tables in parts of bounded size: how rows and values of any number travel, between servers and to a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from heterps.arrays import FloatArray
from heterps.ps.table.rows import Rows

PART_BYTES = 16 * 2**20
"""About as much of a table travels in one message: far less than a message may have, far more than its overhead."""


class ValuePart(NamedTuple):
    """Values first..first+n-1 of a dense table and their optimizer state [words a value, n]."""

    first: int
    values: FloatArray
    state: FloatArray

    @property
    def stop(self) -> int:
        return self.first + len(self.values)

    def cut(self, within: slice) -> ValuePart:
        """Return what of it is `within`: a view."""
        part = slice(max(within.start - self.first, 0), max(within.stop - self.first, 0))
        first = min(max(self.first, within.start), self.stop)
        return ValuePart(first, self.values[part], self.state[:, part])

    def copy(self) -> ValuePart:
        return ValuePart(self.first, self.values.copy(), self.state.copy())


TablePart = Rows | ValuePart


def split(whole: TablePart) -> Iterator[TablePart]:
    """Yield parts of about PART_BYTES, as views; none where there are no rows or values."""
    if isinstance(whole, Rows):
        row_bytes = sum(field[:1].nbytes for field in whole)
        for rows in _slices(len(whole.keys), row_bytes):
            yield whole.select(rows)
    else:
        for values in _slices(len(whole.values), 4 * (1 + len(whole.state))):
            yield whole.cut(slice(whole.first + values.start, whole.first + values.stop))


def _slices(num: int, each_bytes: int) -> Iterator[slice]:
    step = max(1, PART_BYTES // max(1, each_bytes))
    return (slice(first, first + step) for first in range(0, num, step))
