"""Feed: the training data of a worker of stage 0, cut into the micro-batches of its lanes, ahead of use.

batch of 10 samples, 4 lanes:   [0 1 | 2 3 4 | 5 6 | 7 8 9]     or as the shares of the layout say
worker with lanes 0 and 2:      [0 1 | 5 6]                     its share, whose rows are looked up and pulled as one
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heterps.config import Job
from heterps.data.batch import Batch
from heterps.data.pick import BatchRows
from heterps.data.reader import Reader
from heterps.data.shared import SharedRows
from heterps.data.stream import BatchStream
from heterps.lookups import PreparedSlots, prepared, slice_slots
from heterps.training.model.replicas import Replicas
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Go, RowGroupCounts
from heterps.training.worker.core import LABEL


class LanePieces(NamedTuple):
    """A batch: its number of samples, and the values of each lane of a worker; None for a lane that has none."""

    num_samples: int
    values: Mapping[int, dict[str, Any] | None]

    @property
    def num_here(self) -> int:
        """Number of samples of the batch that are this worker's."""
        return sum(len(piece[LABEL]) for piece in self.values.values() if piece is not None)


@dataclass(frozen=True)
class _Share:
    """Which part of every batch a worker has: the bounds of its lanes, where all lanes share each batch."""

    layout: Layout | None = None  # None: batches are whole
    lanes: Sequence[int] = ()
    replicas: Replicas | None = None

    def bounds(self, num_samples: int) -> dict[int, tuple[int, int]]:
        """The samples of each lane of this worker."""
        return {} if self.layout is None else {n: self.layout.bounds_of(n, num_samples) for n in self.lanes}


@dataclass(frozen=True, eq=False)
class _PreparedBatch(Batch):
    """A batch with lookups for the share of one worker."""

    num_samples: int  # of the whole batch
    share: _Share


class Feed:
    """Reads batches of `reader`. `inputs` are the names of the model's inputs: dense values, then slots.

    folder  where the job's workers on a machine share what they decode; none: they do not
    """

    def __init__(self, job: Job, reader: Reader, inputs: Sequence[str], folder: str = "") -> None:
        self._inputs, self._reader = inputs, reader
        self._deadline_s, self._depth, self._epochs = job.workers.deadline_s, job.data.prefetch, job.data.epochs
        self._stream = BatchStream(reader, job.data.prefetch, self._prepare)
        self._num_counted = 0
        self._shared: SharedRows | None = None
        if folder:  # a file system that several machines see is not for sharing memory
            own = Path(folder) / f"rows-{platform.node()}"
            self._shared = SharedRows(own, 1 + reader.blocks_within(self._depth + 1))  # one is read ahead
        self._share = _Share()  # replaced as a whole, for the thread that reads sees it too
        self._in_rounds = job.sync.in_rounds

    def begin(self, place: tuple[int, int] | None) -> None:
        """Read what the worker at this place, of so many in a new run, will most probably begin with. Until it is told
        so, servers start."""
        if place is None:
            return
        number, count = place
        self._reader.shared = self._shared if self._in_rounds and count > 1 else None
        self._stream.expect(0, 0 if self._in_rounds else number * self._reader.batches_per_block)

    def follow(self, layout: Layout, lanes: Sequence[int], replicas: Replicas) -> None:
        """Prepare batches for these lanes of a layout from now on.

        Where workers share each batch, those on one machine share what they decode too.
        """
        is_shared = layout.in_rounds and len(layout.stages[0].workers) > 1
        self._reader.shared = self._shared if is_shared else None
        self._stream.read_ahead(self._epochs if layout.in_rounds or layout.num_lanes == 1 else 0)
        self._share = _Share(layout if layout.in_rounds else None, lanes, replicas)

    def take(self, go: Go) -> LanePieces | None:
        """Return the batch of a go-ahead; None where its epoch has fewer."""
        while (batch := self._stream.get(go.epoch, go.batch, self._deadline_s)) is not None:
            assert isinstance(batch, _PreparedBatch)
            if batch.share is self._share:
                break  # else it was made before the layout changed, and is made anew
        else:
            return None
        self._stream.forget_before(go.epoch, go.batch)
        for ahead in range(1, self._depth + 1):  # most probably
            self._stream.expect(go.epoch, go.batch + ahead)
        if go.next_run:
            self._stream.announce(go.epoch, go.next_run)
        return LanePieces(batch.num_samples, self._pieces(batch, go.lane))

    def upcoming(self, go: Go) -> PreparedSlots | None:
        """The slots of this worker's share of the batch after that of a go-ahead, if it is made already."""
        batch = self._stream.peek(go.epoch, go.batch + 1)
        if not isinstance(batch, _PreparedBatch) or batch.share is not self._share:
            return None
        return prepared(batch.slots)

    def new_counts(self) -> tuple[RowGroupCounts, ...]:
        """What was missing in the row groups that were read for the first time since the last call."""
        found = self._reader.counts_of_groups(self._num_counted)
        self._num_counted += len(found)
        return tuple(RowGroupCounts(number, **vars(counts)) for number, counts in found.items())

    def num_batches(self, epoch: int) -> int:
        count = self._stream.num_batches(epoch)
        assert count is not None
        return count

    def close(self) -> None:
        self._stream.close()
        if self._shared is not None:
            self._shared.close()

    def _pieces(self, batch: _PreparedBatch, lane: int) -> dict[int, dict[str, Any] | None]:
        if lane != ALL_LANES:
            return {lane: self._values(batch)}
        bounds = batch.share.bounds(batch.num_samples)
        if len(bounds) == 1:
            return {only: self._values(batch) if len(batch) else None for only in bounds}
        pieces: dict[int, dict[str, Any] | None] = {}
        at = 0
        for number, (first, last) in bounds.items():
            end = at + last - first
            slots = slice_slots(batch.slots, at, end)
            piece = Batch(batch.dense[at:end], slots, batch.label[at:end])
            pieces[number] = self._values(piece) if end > at else None
            at = end
        return pieces

    def _values(self, batch: Batch) -> dict[str, Any]:
        values = (torch.from_numpy(batch.dense), prepared(batch.slots))
        return {**dict(zip(self._inputs, values, strict=False)), LABEL: torch.from_numpy(batch.label)}

    def _prepare(self, rows: BatchRows) -> Batch:
        """Gather the worker's share and look its rows up ahead of use, on the thread that reads."""
        share = self._share
        batch = rows.pick(None if share.layout is None else list(share.bounds(len(rows)).values()))
        slots = prepared(batch.slots)
        if share.replicas is not None:
            share.replicas.prepare(slots)
        return _PreparedBatch(batch.dense, slots, batch.label, len(rows), share)
