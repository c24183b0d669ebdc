"""Feed: the training data of a worker of stage 0, cut into the micro-batches of its lanes, ahead of use.

batch of 10 samples, 4 lanes:   [0 1 | 2 3 4 | 5 6 | 7 8 9]     lane l has samples l * 10 // 4 to (l + 1) * 10 // 4
worker with lanes 0 and 2:      [0 1 | 5 6]                     its share, whose rows are looked up and pulled as one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from heterps.config import Job
from heterps.data.batch import Batch, Slots
from heterps.data.reader import Reader
from heterps.data.stream import BatchStream
from heterps.lookups import PreparedSlots, prepared, slice_slots
from heterps.training.model.replicas import Replicas
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Go, RowGroupCounts
from heterps.training.worker.core import LABEL


class LanePieces(NamedTuple):
    """A batch of so many samples: the values of each lane of a worker; None for one that has no samples of it."""

    num_samples: int
    values: Mapping[int, dict[str, Any] | None]


@dataclass(frozen=True)
class _Share:
    """Which part of every batch a worker has: the bounds of its lanes, where all lanes share each batch."""

    lanes: Sequence[int] | None = None  # None: batches are whole
    num_lanes: int = 1
    replicas: Replicas | None = None

    def bounds(self, num_samples: int) -> dict[int, tuple[int, int]]:
        """The samples of each lane of this worker."""
        lanes = self.lanes or ()
        return {n: (n * num_samples // self.num_lanes, (n + 1) * num_samples // self.num_lanes) for n in lanes}


@dataclass(frozen=True, eq=False)
class _PreparedBatch(Batch):
    """A batch with lookups for the share of one worker."""

    num_samples: int  # of the whole batch
    share: _Share


class Feed:
    """Reads batches of `reader`. `inputs` are the names of the model's inputs: dense values, then slots."""

    def __init__(self, job: Job, reader: Reader, inputs: Sequence[str]) -> None:
        self._inputs, self._reader = inputs, reader
        self._deadline_s, self._depth = job.workers.deadline_s, job.data.prefetch
        self._stream = BatchStream(reader, job.data.prefetch, self._prepare)
        self._num_counted = 0
        self._share = _Share()  # replaced as a whole, for the thread that reads sees it too

    def follow(self, layout: Layout, lanes: Sequence[int], replicas: Replicas) -> None:
        """From now on batches are for these lanes of a layout."""
        self._share = _Share(lanes if layout.in_rounds else None, layout.num_lanes, replicas)

    def take(self, go: Go) -> LanePieces | None:
        """The batch of a go-ahead; None where its epoch has fewer."""
        while (batch := self._stream.get(go.epoch, go.batch, self._deadline_s)) is not None:
            assert isinstance(batch, _PreparedBatch)
            if batch.share is self._share:
                break  # else it was made before the layout changed, and is made anew
        else:
            return None
        self._stream.forget_before(go.epoch, go.batch)
        for ahead in range(1, self._depth + 1):  # most probably
            self._stream.expect(go.epoch, go.batch + ahead)
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

    def _prepare(self, batch: Batch) -> Batch:
        """Cut out the worker's share and look its rows up ahead of use, on the thread that reads."""
        share, num_samples = self._share, len(batch)
        if share.lanes is not None:
            batch = _joined(batch, list(share.bounds(num_samples).values()))
        slots = prepared(batch.slots)
        if share.replicas is not None:
            share.replicas.prepare(slots)
        return _PreparedBatch(batch.dense, slots, batch.label, num_samples, share)


def _joined(batch: Batch, bounds: Sequence[tuple[int, int]]) -> Batch:
    """The samples within these bounds, one after the other."""
    if bounds[0][0] == 0 and bounds[-1][1] == len(batch) and sum(b - a for a, b in bounds) == len(batch):
        return batch
    if len(bounds) == 1:
        first, last = bounds[0]
        return Batch(batch.dense[first:last], slice_slots(batch.slots, first, last), batch.label[first:last])
    pieces = [slice_slots(batch.slots, first, last) for first, last in bounds]
    return Batch(
        np.concatenate([batch.dense[first:last] for first, last in bounds]),
        _joined_slots(pieces),
        np.concatenate([batch.label[first:last] for first, last in bounds]),
    )


def _joined_slots(pieces: Sequence[PreparedSlots]) -> Slots:
    keys = np.concatenate([piece.keys for piece in pieces])
    if pieces[0].offsets is None:
        return Slots(pieces[0].names, keys)
    lengths = [np.diff(piece.offsets) for piece in pieces if piece.offsets is not None]
    return Slots(pieces[0].names, keys, np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64))
