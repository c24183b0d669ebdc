"""Read batches of a data set: every row once per epoch, in an order that is a pure function of (seed, epoch).

    row groups --(permuted)--> blocks of at least 65,536 rows --(decoded)--> rows --(permuted)--> batches
                                       |            .-------- block 3 --------.
    Position(epoch, block=3, row=500)  +----------> | 500 rows used | the next batch starts here, spans blocks

A block of long rows has fewer of them, to limit its memory.

A Position comes with every batch and says where the next one starts. Reading from it gives exactly the batches that an
uninterrupted reader would give; blocks before it are neither opened nor decoded. The start of batch n of an epoch is
computed (epoch.py), so a reader can start at any batch, and `stream.py` reads selected batches only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from heterps.background import start
from heterps.config import Job, Schema, Split
from heterps.config.data import Paths
from heterps.data.batch import Batch
from heterps.data.columns import check_columns
from heterps.data.decode import Block, DecodeCounts, Decoder, num_at_once
from heterps.data.epoch import Epoch
from heterps.data.kernels import permutation
from heterps.data.pick import BatchRows, BlockRows, joined
from heterps.data.shared import SharedRows
from heterps.data.sources import Dataset, RowGroup, open_dataset, open_paths
from heterps.data.split import Part, fit_split
from heterps.errors import DataError

BLOCK_ROWS = 65_536
"""Row groups are pooled into a block until it has this many rows. Rows are shuffled within a block."""
BLOCK_BYTES = 64 * 2**20
"""Row groups are pooled no further once the dense values of a block take this much: a whole block is in memory."""
_EPOCHS_KEPT = 3
_ALWAYS_HASHED = frozenset(
    ("label", "num_classes", "dense", "widths", "slots", "dense_missing", "dense_fill", "slot_missing", "same_ids")
)
"""Fields of a schema that every fingerprint has. Fields that came later are part of it only where they are used, so
that checkpoints from before them still fit their data."""


@dataclass(frozen=True)
class Position:
    """The start of the next batch. In JSON: `dataclasses.asdict(position)`, and back by `Position(**fields)`."""

    epoch: int = 0
    block: int = 0  # in the order of this epoch
    row: int = 0  # rows of that block already used, in its shuffled order
    samples: int = 0  # samples used in this epoch
    order: str = ""  # fingerprint of the data and of what decides its order: files, seed, columns; "" matches any


class Reader:
    """Reads epochs of batches from a data set.

    Batches span row groups: each has `batch_size` samples, except the last of an epoch, which has the rest. With a
    `part`, only the rows of that side of a split are there.
    `counts` has the numbers of rows decoded so far, each counted once, and of missing values in them. Readers with the
    same data and order that have the same `shared` folder decode each block once for all of them.
    """

    shared: SharedRows | None = None

    def __init__(
        self,
        source: str | Sequence[str] | Dataset,
        schema: Schema | None = None,
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        part: Part | None = None,
    ) -> None:
        self.dataset = source if isinstance(source, Dataset) else open_dataset(source)
        self.schema = schema or Schema()
        self.batch_size = batch_size
        self._decoder = Decoder(self.schema, check_columns(self.dataset, self.schema), part)
        self._part_rows = {group: group.num_rows for group in self.dataset.row_groups}
        if part is not None:
            part.check(self.dataset)
            self._part_rows = {group: count for group, count in part.num_rows(list(self._part_rows)).items() if count}
            if not self._part_rows:
                raise part.is_empty(self.dataset.files[0].address)
        self._part = part
        self._shuffle = shuffle
        self._block_rows = min(BLOCK_ROWS, max(1, BLOCK_BYTES // (4 * max(1, self.schema.num_dense))))
        self._seed = seed
        self.order = self._fingerprint(_content)  # every position has it
        may_skip = "skip" in (self.schema.dense_missing, self.schema.slot_missing)
        self._kept_rows: dict[RowGroup, int] = {} if may_skip else dict(self._part_rows)
        self._epochs: OrderedDict[int, Epoch] = OrderedDict()
        self._epochs_lock, self._decoding = Lock(), Lock()
        if not 1 <= batch_size <= self.num_rows:
            raise DataError(
                f"{self.dataset.files[0].address}: a batch of {batch_size:,} samples cannot be made of "
                f"{self.num_rows:,} rows. Set data.batch_size between 1 and {self.num_rows:,}, or name more data."
            )

    @property
    def num_rows(self) -> int:
        """Number of rows of one epoch, including those that the schema skips."""
        return sum(self._part_rows.values())

    @property
    def counts(self) -> DecodeCounts:
        return self._decoder.counts

    def counts_of_groups(self, after: int) -> dict[int, DecodeCounts]:
        """What was missing in each row group, by its number in the data set; without the first `after` decoded ones."""
        decoded = list(self._decoder.counts_by_group.items())[after:]
        return {self._group_numbers[group]: counts for group, counts in decoded}

    @cached_property
    def _group_numbers(self) -> dict[RowGroup, int]:
        return {group: number for number, group in enumerate(self.dataset.row_groups)}

    @property
    def num_batches(self) -> int | None:
        """Number of batches per epoch; None while the schema may skip rows that were not decoded yet."""
        if len(self._kept_rows) < len(self._part_rows):
            return None
        return -(-sum(self._kept_rows.values()) // self.batch_size)

    @property
    def batches_per_block(self) -> int:
        """Number of batches in the largest block, at least 1: the length of a run of leases (leases.py).

        Most blocks are as large, so that most runs begin where a block does.
        """
        most_rows = max(sum(self._part_rows[group] for group in block) for block in self.epoch(0).blocks)
        return max(1, most_rows // self.batch_size)

    def blocks_within(self, num_batches: int) -> int:
        """Largest number of blocks that this number of consecutive batches touches, about: batches may span blocks."""
        return 2 + num_batches * self.batch_size * len(self.epoch(0).blocks) // self.num_rows

    def position_of(self, epoch: int, number: int) -> Position | None:
        """The start of batch `number` (from 0) of an epoch: the position that `read` gives with the batch before it.

        For `number` equal to the number of batches it is the start of the next epoch. None if there is no such batch,
        or if that is unknown because the schema may skip rows of blocks that were not decoded yet.
        """
        rows = self.epoch(epoch)
        row = number * self.batch_size
        place = rows.place(row)
        if place is not None:
            return Position(epoch, *place, row, self.order)
        num_rows = rows.num_rows
        is_end = num_rows is not None and number == -(-num_rows // self.batch_size)
        return Position(epoch + 1, order=self.order) if is_end else None

    def epoch(self, number: int) -> Epoch:
        """The blocks of an epoch in its order. Recent epochs are cached and shared by all threads."""
        with self._epochs_lock:
            if number not in self._epochs:
                self._epochs[number] = Epoch(self._blocks(number), self._kept_rows)
                if len(self._epochs) > _EPOCHS_KEPT:
                    self._epochs.popitem(last=False)
            self._epochs.move_to_end(number)
            return self._epochs[number]

    def read(self, position: Position | None = None) -> Iterator[tuple[Batch, Position]]:
        """Iterate over the batches of one epoch from `position`, each with the position after it.

        The position after the last batch is the start of the next epoch. Decoding runs on the calling thread: wrap it
        in `Prefetch` to decode ahead.
        """
        at = self.checked(position or Position())
        blocks = Blocks(self)
        while (read := blocks.batch(at)) is not None:
            rows, after = read
            batch = rows.pick()
            if blocks.are_over(after):
                yield batch, Position(at.epoch + 1, order=self.order)
                return
            yield batch, after
            at = after
        raise self.no_rows()

    def no_rows(self) -> DataError:
        """The error for an epoch without any batch."""
        return DataError(
            f"{self.dataset.files[0].address}: every one of the {self.num_rows:,} rows was skipped because a "
            "value is missing. Fix the data, or set data.columns.dense_missing or slot_missing not to skip."
        )

    def checked(self, position: Position) -> Position:
        """Return `position`; raises DataError if it belongs to other data or another order."""
        if not self.has_order(position.order):
            raise DataError(
                f"{self.dataset.files[0].address}: the position to go on from belongs to other data, columns or "
                "another seed: files were added, removed or rewritten since. Restore them, or start a new run. "
                "A run goes on with other data once it is done with its own."
            )
        return position

    def has_order(self, order: str) -> bool:
        """Whether the `order` of a position is of this data and order."""
        return order in ("", self.order, self._fingerprint(_names_and_rows))

    def _fingerprint(self, describe: Callable[[RowGroup], tuple[Any, ...]]) -> str:
        """Hash everything that decides the order of samples; `describe` gives the relevant facts of a row group."""
        groups = [describe(group) for group in self.dataset.row_groups]
        unused = {name for name in Schema.model_fields.keys() - _ALWAYS_HASHED if self._is_default(name)}
        columns = self.schema.model_dump_json(exclude={*unused, "id_kinds"})  # the types of columns are in the data
        decides = (groups, columns, self._seed, self._shuffle, self._block_rows)
        return xxhash.xxh3_64_hexdigest(repr(decides).encode())

    def _is_default(self, name: str) -> bool:
        return bool(getattr(self.schema, name) == Schema.model_fields[name].get_default(call_default_factory=True))

    # --- order -------------------------------------------------------------------------------------------------------

    def _blocks(self, epoch: int) -> list[list[RowGroup]]:
        """Put the row groups into this epoch's order, and pool consecutive ones into blocks."""
        groups = list(self._part_rows)
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

    def decode(self, epoch: int, block: int) -> BlockRows:
        """Decode a block of an epoch; return it with its rows in their order, and remember their number."""
        groups = self.epoch(epoch).blocks[block]
        shared = self.shared  # which may change meanwhile
        with self._decoding:
            blocks = (
                self._decode_groups(groups) if shared is None else self._decode_shared(shared, groups, epoch, block)
            )
        self._kept_rows.update((group, len(decoded.rows)) for group, decoded in zip(groups, blocks, strict=True))
        whole = blocks[0] if len(blocks) == 1 else joined(blocks)
        return whole, self._shuffled(whole.rows, epoch, block)

    def _decode_groups(self, groups: Sequence[RowGroup]) -> list[Block]:
        return list(self._decoder.decode_all(groups))

    def _decode_shared(self, shared: SharedRows, groups: Sequence[RowGroup], epoch: int, block: int) -> list[Block]:
        """Decode what no other reader on this machine has decoded; counts are kept of all row groups."""
        counts = self._decoder.counts_by_group

        def decode(numbers: list[int]) -> Iterator[tuple[Block, DecodeCounts]]:
            chosen = [groups[number] for number in numbers]
            for group, decoded in zip(chosen, self._decode_groups(chosen), strict=True):
                yield decoded, counts[group]

        found = shared.decode((epoch, block), len(groups), decode, num_at_once(groups))
        counts.update({group: counted for group, (_, counted) in zip(groups, found, strict=True)})
        return [decoded for decoded, _ in found]


def open_reader(job: Job, *, seed: int | None = None) -> Reader:
    """Open the training data of a job, in its batches and its order; `seed` replaces the job's."""
    data = fit_split(job).data
    seed = job.seed if seed is None else seed
    part = Part(data.validation, held_out=False) if isinstance(data.validation, Split) else None
    dataset = open_paths(data, data.train)
    columns = data.columns.model_copy(update={"user": None})  # evaluation alone asks for users
    return Reader(dataset, columns, batch_size=data.batch_size, shuffle=data.shuffle, seed=seed, part=part)


def open_test_reader(job: Job, *, least: int = 1) -> Reader:
    """Open the test set of a job, in the order of its files, in batches of at least `least` samples."""
    assert job.data.test is not None
    return _in_order(job, job.data.test, None, least)


def open_validation_reader(job: Job) -> Reader:
    """Open the samples that a job validates with, in the order of their files."""
    data = fit_split(job).data
    if isinstance(data.validation, Split):
        return _in_order(job, data.train, Part(data.validation, held_out=True))
    assert data.validation is not None
    return _in_order(job, data.validation)


def _in_order(job: Job, source: Paths, part: Part | None = None, least: int = 1) -> Reader:
    dataset = open_paths(job.data, source)
    reader = Reader(dataset, job.data.columns, batch_size=1, shuffle=False, part=part)
    reader.batch_size = min(max(job.data.batch_size, least), reader.num_rows)
    return reader


class Blocks:
    """Makes batches from a reader's blocks, which are decoded on demand; the last `num_kept` stay in memory."""

    def __init__(self, reader: Reader, num_kept: int = 1) -> None:
        self._reader = reader
        self._num_kept = num_kept
        self._decoded: OrderedDict[tuple[int, int], BlockRows | Future[BlockRows]] = OrderedDict()

    def rows(self, epoch: int, block: int) -> BlockRows:
        """Return a block, decoded if needed, and its rows in their order."""
        if (found := self._decoded.pop((epoch, block), None)) is None:
            self._make_room()
            found = self._reader.decode(epoch, block)
        rows = found.result() if isinstance(found, Future) else found
        self._decoded[epoch, block] = rows
        return rows

    def read_ahead(self, epoch: int, block: int) -> None:
        """Begin to decode a block on a thread of its own, unless it is here. An error is raised by `rows`."""
        if (epoch, block) not in self._decoded:
            self._make_room()
            self._decoded[epoch, block] = start(partial(self._reader.decode, epoch, block), "prefetch")

    def close(self) -> None:
        """Forget all blocks, when those that are being decoded are done."""
        while self._decoded:
            _, found = self._decoded.popitem()
            if isinstance(found, Future):
                found.exception()

    def _make_room(self) -> None:
        while len(self._decoded) >= self._num_kept:  # before decoding the next: a block is large
            self._decoded.popitem(last=False)

    def batch(self, at: Position) -> tuple[BatchRows, Position] | None:
        """Return the rows of the batch that starts at a position, and the position after it; None if none are left."""
        num_blocks = len(self._reader.epoch(at.epoch).blocks)
        block, used, missing = at.block, at.row, self._reader.batch_size
        pieces: list[BlockRows] = []
        while missing and block < num_blocks:
            decoded, rows = self.rows(at.epoch, block)
            taken = rows[used : used + missing]
            if len(taken):
                pieces.append((decoded, taken))
            used += len(taken)
            missing -= len(taken)
            if used >= len(rows):
                block, used = block + 1, 0
        if not pieces:
            return None
        batch = BatchRows(self._reader.schema, pieces)
        return batch, replace(at, block=block, row=used, samples=at.samples + len(batch), order=self._reader.order)

    def are_over(self, after: Position) -> bool:
        """Tell whether no rows are left after a batch. Decodes only blocks whose number of rows is unknown."""
        if after.row:
            return False  # a used-up block would have been left for the start of the next
        epoch = self._reader.epoch(after.epoch)
        for block in range(after.block, len(epoch.blocks)):
            num_rows = epoch.rows_of(block)
            if num_rows or (num_rows is None and len(self.rows(after.epoch, block)[1])):
                return False
        return True


def _names_and_rows(group: RowGroup) -> tuple[Any, ...]:
    """The facts in fingerprints of older checkpoints; they do not detect a file that was rewritten."""
    return group.file.path.rsplit("/", 1)[-1], group.num_rows


def _content(group: RowGroup) -> tuple[Any, ...]:
    """The file name, the number of rows, and what the file tells about its content without being read."""
    return (*_names_and_rows(group), group.file.content(group.index))


def _seed_of(*parts: int) -> np.uint64:
    """Combine several numbers into one 64-bit seed."""
    return np.uint64(xxhash.xxh3_64_intdigest(repr(parts).encode()))
