"""Where the rows of a batch are in the files, for people who want to look at them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps.data.batch import Batch
from heterps.data.pick import BatchRows
from heterps.data.reader import Reader
from heterps.data.stream import BatchStream


class RowPlace(NamedTuple):
    """A row of a file; both counts are from 0."""

    file: str
    row_group: int
    row: int  # in the row group
    row_of_file: int


class Places:
    """Finds batches of `reader`, which belongs to it until it is closed, with the places of their rows."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._rows = reader, BatchRows(reader.schema, [])
        self._stream = BatchStream(reader, 0, self._keep)

    def find(self, epoch: int, number: int) -> tuple[Batch, list[RowPlace]]:
        """Return batch `number` of an epoch and the place of each of its samples. It decodes the blocks they are in."""
        batch = self._stream.get(epoch, number, deadline_s=0.0)
        blocks, start = self._reader.epoch(epoch), self._reader.position_of(epoch, number)
        assert batch is not None, f"epoch {epoch} has no batch {number}"
        assert start is not None, "a batch that was read has a start"
        places: list[RowPlace] = []
        block, used = start.block, start.row
        for _, rows in self._rows.pieces:
            while (blocks.rows_of(block) or 0) <= used:  # a block all of whose rows are skipped
                block, used = block + 1, 0
            groups = blocks.blocks[block]
            firsts = np.cumsum([0, *(group.num_rows for group in groups)])
            for row in rows.tolist():
                at = int(np.searchsorted(firsts, row, "right")) - 1
                group, in_group = groups[at], row - int(firsts[at])
                places.append(RowPlace(group.file.address, group.index, in_group, group.first_row + in_group))
            block, used = block + 1, 0
        return batch, places

    def close(self) -> None:
        self._stream.close()

    def _keep(self, rows: BatchRows) -> Batch:
        self._rows = rows
        return rows.pick()
