"""Batches from Parquet: every row once an epoch, in an order that is a pure function of (seed, epoch).

    row groups --(permuted)--> blocks of at least 65,536 rows --(decoded)--> rows --(permuted)--> batches
                                       |            .-------- block 3 --------.
    Position(epoch, block=3, row=500)  +----------> | 500 rows used | the next batch starts here, spans blocks

Of long rows a block has fewer: as many as its memory allows.

A Position goes with every batch and says where the next one starts. Reading from it gives exactly the batches that an
uninterrupted reader would have given; blocks before it are not decoded, not even opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from heterps.config import Schema
from heterps.data.batch import Batch, KeyArray, OffsetArray, Slots
from heterps.data.columns import check_columns
from heterps.data.decode import Block, Counts, Decoder
from heterps.data.kernels import permutation, pick_bags
from heterps.data.sources import Dataset, RowGroup, open_dataset
from heterps.errors import DataError

BLOCK_ROWS = 65_536
"""Rows are shuffled within a block; small row groups are pooled until a block has as many."""
BLOCK_BYTES = 64 * 2**20
"""Or until their dense values take as much: a block is in memory whole, and images are long rows."""


@dataclass(frozen=True)
class Position:
    """Where the next batch starts. Kept in JSON by `dataclasses.asdict(position)` and `Position(**fields)`."""

    epoch: int = 0
    block: int = 0  # in the order of this epoch
    row: int = 0  # rows of that block already used, in its shuffled order
    samples: int = 0  # used in this epoch
    order: str = ""  # fingerprint of what decides the order: files, rows, seed, columns; "" fits any


class Reader:
    """Reads epochs of batches from a data set.

    Batches span row groups: each has `batch_size` samples but the last of an epoch, which has what is left.
    `counts` tells what this reader decoded so far and what was missing in it.
    """

    def __init__(
        self,
        source: str | Sequence[str] | Dataset,
        schema: Schema | None = None,
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.dataset = source if isinstance(source, Dataset) else open_dataset(source)
        self.schema = schema or Schema()
        self.batch_size = batch_size
        self._decoder = Decoder(self.schema, check_columns(self.dataset, self.schema))
        self._shuffle = shuffle
        self._block_rows = min(BLOCK_ROWS, max(1, BLOCK_BYTES // (4 * max(1, self.schema.num_dense))))
        self._seed = seed
        self._order = self._fingerprint()
        if not 1 <= batch_size <= self.num_rows:
            raise DataError(
                f"{self.dataset.files[0].address}: a batch of {batch_size:,} samples cannot be made of "
                f"{self.num_rows:,} rows. Set data.batch_size between 1 and {self.num_rows:,}, or name more data."
            )

    @property
    def num_rows(self) -> int:
        """Rows of one epoch, including those that a `skip` policy will leave out."""
        return self.dataset.num_rows

    @property
    def counts(self) -> Counts:
        return self._decoder.counts

    def read(self, position: Position | None = None) -> Iterator[tuple[Batch, Position]]:
        """The batches of one epoch from `position` on, each with the position after it.

        The position after the last batch is the start of the next epoch. Decodes on the calling thread: wrap it in
        `Prefetch` to decode ahead.
        """
        at = self._checked(position or Position())
        blocks = self._blocks(at.epoch)
        samples, missing = at.samples, self.batch_size  # used so far; until the batch is full
        pieces: list[tuple[Block, NDArray[np.int64]]] = []
        held: Batch | None = None  # a full batch waits until it is known whether it is the epoch's last
        after = at
        for index in range(at.block, len(blocks)):
            block = self._decode(blocks[index])
            rows = self._shuffled(block.rows, at.epoch, index)
            used = at.row if index == at.block else 0
            while used < len(rows):
                if held and not pieces:
                    yield held, after
                taken = rows[used : used + missing]
                pieces.append((block, taken))
                used += len(taken)
                missing -= len(taken)
                if missing == 0:
                    held, pieces, missing = self._pick(pieces), [], self.batch_size
                    samples += self.batch_size
                    here = (index, used) if used < len(rows) else (index + 1, 0)
                    after = Position(at.epoch, *here, samples, self._order)
        last = self._pick(pieces) if pieces else held
        if last is None:
            raise DataError(
                f"{self.dataset.files[0].address}: every one of the {self.num_rows:,} rows was skipped because a "
                "value is missing. Mend the data, or set data.columns.dense_missing or slot_missing not to skip."
            )
        yield last, Position(at.epoch + 1, order=self._order)

    def _checked(self, position: Position) -> Position:
        if position.order not in ("", self._order):
            raise DataError(
                f"{self.dataset.files[0].address}: the position to go on from belongs to other data, columns or "
                "another seed: files were added, removed or rewritten since. Restore them, or start a new run."
            )
        return position

    def _fingerprint(self) -> str:
        groups = [(group.file.path.rsplit("/", 1)[-1], group.num_rows) for group in self.dataset.row_groups]
        decides = (groups, self.schema.model_dump_json(), self._seed, self._shuffle, self._block_rows)
        return xxhash.xxh3_64_hexdigest(repr(decides).encode())

    # --- order -------------------------------------------------------------------------------------------------------

    def _blocks(self, epoch: int) -> list[list[RowGroup]]:
        """The row groups in this epoch's order, consecutive ones pooled into blocks."""
        groups = self.dataset.row_groups
        if not self._shuffle:
            return [[group] for group in groups]
        blocks: list[list[RowGroup]] = [[]]
        pooled = 0
        for i in permutation(len(groups), _seed_of(self._seed, epoch, -1)):
            if pooled >= self._block_rows:
                blocks.append([])
                pooled = 0
            blocks[-1].append(groups[i])
            pooled += groups[i].num_rows
        return blocks

    def _shuffled(self, rows: NDArray[np.int64], epoch: int, block: int) -> NDArray[np.int64]:
        return rows[permutation(len(rows), _seed_of(self._seed, epoch, block))] if self._shuffle else rows

    # --- rows --------------------------------------------------------------------------------------------------------

    def _decode(self, groups: list[RowGroup]) -> Block:
        blocks = [self._decoder.decode(group) for group in groups]
        return blocks[0] if len(blocks) == 1 else _joined(blocks)

    def _pick(self, pieces: list[tuple[Block, NDArray[np.int64]]]) -> Batch:
        """The batch of the picked rows of each block."""
        size = sum(len(rows) for _, rows in pieces)
        names = self.schema.slots
        dense = np.empty((size, self.schema.num_dense), np.float32)
        label = np.empty(size, np.float32)
        keys = np.empty((size, len(names)), np.uint64)
        ragged: list[tuple[KeyArray, OffsetArray]] = []
        at = 0
        for block, rows in pieces:
            to = slice(at, at + len(rows))
            # mode="clip" lets NumPy write straight into `out`; every index is in range.
            block.dense.take(rows, axis=0, out=dense[to], mode="clip")
            block.label.take(rows, out=label[to], mode="clip")
            if block.offsets is None:
                block.keys.reshape(len(block.label), -1).take(rows, axis=0, out=keys[to], mode="clip")
            else:
                lengths = np.empty(len(rows) * len(names), np.int64)
                ragged.append((pick_bags(block.keys, block.offsets, len(names), rows, lengths), lengths))
            at = to.stop
        if not ragged:
            return Batch(dense, Slots(names, keys.reshape(-1)), label)
        offsets = np.concatenate([np.zeros(1, np.int64), *(lengths for _, lengths in ragged)])
        np.cumsum(offsets, out=offsets)
        return Batch(dense, Slots(names, np.concatenate([keys for keys, _ in ragged]), offsets), label)


def _joined(blocks: list[Block]) -> Block:
    """Blocks one after the other, as one."""
    first_rows = np.cumsum([0, *(len(block.label) for block in blocks)])
    offsets = None
    if blocks[0].offsets is not None:
        first_keys = np.cumsum([0, *(len(block.keys) for block in blocks)])
        shifted = [b.offsets[1:] + first for b, first in zip(blocks, first_keys, strict=False) if b.offsets is not None]
        offsets = np.concatenate([np.zeros(1, np.int64), *shifted])
    return Block(
        np.concatenate([block.dense for block in blocks]),
        np.concatenate([block.keys for block in blocks]),
        offsets,
        np.concatenate([block.label for block in blocks]),
        np.concatenate([block.rows + first for block, first in zip(blocks, first_rows, strict=False)]),
    )


def _seed_of(*parts: int) -> np.uint64:
    """One 64-bit seed of several numbers."""
    return np.uint64(xxhash.xxh3_64_intdigest(repr(parts).encode()))
