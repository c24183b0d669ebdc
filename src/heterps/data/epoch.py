"""Locate the rows of one epoch in its blocks by arithmetic, without decoding.

    block       |------- 0 -------|--- 1 ---|---- 2 ----|-- 3: ? --|---- 4 ----
    first row   0                 70        110         150        unknown until block 3 is decoded
    batch of 30 | 0   | 1   | 2  .|   | 3  .|   | 4     | 5 ...

A block's number of rows is known without decoding, unless the schema may skip rows; then it is known once each of its
row groups was decoded for the first time, in any epoch. The walk to a row passes over blocks of known length:

    [1] start at the last block with a known first row at or before the row
    [2] walk on until a block holds the row, and remember the first rows on the way
    [3] stop at a block of unknown length (the gap), or after the last block
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from heterps.data.sources import RowGroup


class Epoch:
    """The blocks of one epoch in their order, and the place of its rows, which count from 0 in the reader's order.

    `kept_rows` gives the number of rows of each row group that are not skipped; groups that are missing in it are not
    known yet. It is read at every call, so it may grow.
    """

    def __init__(self, blocks: Sequence[Sequence[RowGroup]], kept_rows: Mapping[RowGroup, int]) -> None:
        self.blocks = blocks
        self._kept_rows = kept_rows
        self._num_rows: dict[int, int] = {}  # by block
        self._known = [0]  # blocks whose first row is known, ascending; len(blocks) is the end
        self._first_rows = [0]  # the first row of each of them

    def rows_of(self, block: int) -> int | None:
        """Number of rows of a block that are not skipped; None while it is unknown."""
        if block not in self._num_rows:
            groups = self.blocks[block]
            if not all(group in self._kept_rows for group in groups):
                return None
            self._num_rows[block] = sum(self._kept_rows[group] for group in groups)
        return self._num_rows[block]

    def set_first_row(self, block: int, first_row: int) -> None:
        """Record the first row of a block, found by reading the blocks before it."""
        at = bisect_left(self._known, block)
        if at == len(self._known) or self._known[at] != block:
            self._known.insert(at, block)
            self._first_rows.insert(at, first_row)

    def place(self, row: int) -> tuple[int, int] | None:
        """Return (block, row in its shuffled order) of a row; None if the row is not known to exist."""
        block = self._walk(row)
        if block == len(self.blocks) or self.rows_of(block) is None:
            return None
        at = bisect_left(self._first_rows, row)
        if at < len(self._first_rows) and self._first_rows[at] == row:
            return self._known[at], 0  # the first of the empty blocks before it: a reader's positions include them
        return block, row - self._first_rows[at - 1]

    def gap(self, row: int) -> int | None:
        """The block to decode next to locate `row`; None if its place is known, or that it does not exist."""
        block = self._walk(row)
        return block if block < len(self.blocks) and self.rows_of(block) is None else None

    @property
    def num_rows(self) -> int | None:
        """Number of rows of the epoch; None while it is unknown."""
        if self._known[-1] < len(self.blocks):
            self._walk_from(len(self._known) - 1, None)
        return self._first_rows[-1] if self._known[-1] == len(self.blocks) else None

    def _walk(self, row: int) -> int:
        return self._walk_from(bisect_right(self._first_rows, row) - 1, row)  # [1]

    def _walk_from(self, at: int, row: int | None) -> int:
        """Return the block that holds `row`, the first gap before it, or len(blocks). `row` None means past the end."""
        block, first_row = self._known[at], self._first_rows[at]
        while block < len(self.blocks):
            num_rows = self.rows_of(block)
            if num_rows is None or (row is not None and row < first_row + num_rows):  # [3]
                break
            block, first_row = block + 1, first_row + num_rows
            self.set_first_row(block, first_row)  # [2]
        return block
