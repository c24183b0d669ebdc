"""Feed: the training data of a worker of stage 0, cut into the micro-batches of its lanes, ahead of use.

batch of 10 samples, 4 lanes:   [0 1 | 2 3 4 | 5 6 | 7 8 9]     lane l has samples l * 10 // 4 to (l + 1) * 10 // 4
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from heterps.config import Job
from heterps.data.batch import Batch, Slots
from heterps.data.reader import open_reader
from heterps.data.stream import BatchStream
from heterps.nn import slice_slots
from heterps.training.model.replica import Replica
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Go

LABEL = ":label"
"""The name under which labels travel with the values of nodes; no node has it."""


@dataclass(frozen=True)
class Pieces:
    """The values of each lane; None for one that has no samples of this batch."""

    num_samples: int
    values: Mapping[int, Mapping[str, Any] | None]


@dataclass(frozen=True)
class _Followed:
    """Which part of a batch is whose."""

    lanes: Sequence[int] | None  # of this worker; None: batches are whole
    num_lanes: int
    replica: Replica | None

    def bounds(self, num_samples: int, lane: int) -> tuple[int, int]:
        if self.lanes is None:
            return 0, num_samples
        return lane * num_samples // self.num_lanes, (lane + 1) * num_samples // self.num_lanes


class Feed:
    """`inputs` are the names of the model's inputs: dense values, then slots."""

    def __init__(self, job: Job, inputs: Sequence[str]) -> None:
        self._inputs = inputs
        self._deadline_s = job.workers.deadline_s
        self._depth = job.data.prefetch
        self._stream = BatchStream(open_reader(job), job.data.prefetch, self._prepare)
        self._followed = _Followed(None, 1, None)  # in one piece, for the thread that reads sees it too

    def follow(self, layout: Layout, lanes: Sequence[int] | None, replica: Replica) -> None:
        """From now on batches are for these lanes of a layout; None: whole batches, for whichever lane they are."""
        self._followed = _Followed(lanes, layout.num_lanes, replica)

    def take(self, go: Go) -> Pieces | None:
        """The batch of a go-ahead; None where its epoch has fewer."""
        batch = self._stream.get(go.epoch, go.batch, self._deadline_s)
        if batch is None:
            return None
        self._stream.forget_before(go.epoch, go.batch)
        for ahead in range(1, self._depth + 1):  # most probably
            self._stream.expect(go.epoch, go.batch + ahead)
        followed = self._followed
        lanes = [go.lane] if go.lane != ALL_LANES else followed.lanes or []
        return Pieces(len(batch), {lane: self._piece(batch, *followed.bounds(len(batch), lane)) for lane in lanes})

    def num_batches(self, epoch: int) -> int:
        count = self._stream.num_batches(epoch)
        assert count is not None
        return count

    def close(self) -> None:
        self._stream.close()

    def _piece(self, batch: Batch, first: int, last: int) -> Mapping[str, Any] | None:
        if first == last:
            return None
        piece = batch.slots.prepared.get((first, last))
        slots: Slots = piece if piece is not None else slice_slots(_bare(batch.slots), first, last)
        values = (torch.from_numpy(batch.dense[first:last]), slots)
        return {**dict(zip(self._inputs, values, strict=False)), LABEL: torch.from_numpy(batch.label[first:last])}

    def _prepare(self, batch: Batch) -> Batch:
        """Cut and look up ahead of use, on the thread that reads."""
        followed = self._followed
        if followed.replica is not None:
            for lane in [0] if followed.lanes is None else followed.lanes:
                first, last = followed.bounds(len(batch), lane)
                piece = slice_slots(_bare(batch.slots), first, last)
                followed.replica.prepare(piece)
                batch.slots.prepared[first, last] = piece
        return batch


def _bare(slots: Slots) -> Slots:
    """Without what was prepared for the whole."""
    return Slots(slots.names, slots.keys, slots.offsets)
