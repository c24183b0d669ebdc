"""Dense tables: every server has a range of the values, pulled whole, pushed as gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from heterps.arrays import FloatArray
from heterps.ps.ops import base
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import EXACT, Coding, Count, Iteration, Round
from heterps.ps.protocol.roster import Roster
from heterps.ps.shard.ledger import PushSource
from heterps.ps.shard.rounds import Contribution
from heterps.ps.shard.shard import Shard
from heterps.wire import Limits, Malformed, Packed


class PullDense(base.Read, frozen=True, tag="pull_dense"):
    """The server's range of a dense table, once the worker's own pushes up to `after` have been applied."""

    tables = "dense"
    coding: Coding

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        dense = shard.dense[self.table]
        values = dense.values(base.room_for((dense.size,), self.coding, to.room))
        to.counts.pulled(self.table, len(values))
        return base.answer_values(values, self.coding, to.room)


class PushDense(base.Push, frozen=True, tag="push_dense"):
    """Gradients (a frame) of the server's range of a dense table."""

    tables = "dense"
    grads: Packed
    samples: Count | None = None
    round: Round | None = None
    iteration: Iteration | None = None

    @property
    def contribution(self) -> tuple[Round, int] | None:
        return None if self.round is None else (self.round, 4 * prod(self.grads.shape))

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        dense = shard.dense[self.table]
        self.check_gradients(dense.spec.schedule, self.samples)
        grads = self.finite(base.read_values(self, self.grads, frames, (dense.size,), limits))
        push = Contribution(None, grads, self.samples)
        of = self.round or self.iteration
        return self.once(shard, len(grads), lambda source: dense.push(source, self.sequence, push, of))


class FillDense(base.Op, frozen=True, tag="fill_dense"):
    """First values (a frame) of the server's range of a dense table. Only the first fill of a table counts."""

    tables = "dense"
    changes = True
    values: Packed

    def is_repeat(self, shard: Shard, source: PushSource) -> bool:
        del source
        return all(piece.is_filled for piece in shard.dense[self.table].pieces)

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        dense = shard.dense[self.table]
        values = base.read_values(self, self.values, frames, (dense.size,), limits)

        def fill(_: base.Serving) -> base.Answer:
            dense.fill(values)
            return base.Done(), []

        return fill


class DenseCall(base.Call):
    """A call that concerns every server that has some of the `size` values of a dense table."""

    size: int

    def concerns(self, number: int, roster: Roster) -> bool:
        part = roster.dense_range(self.size, number)
        return bool(part.stop > part.start)


@dataclass(eq=False)
class PullDenseCall(DenseCall):
    """The values of a dense table. Those of a single server are where they came, and may be read only."""

    table: str
    size: int
    after: int
    coding: Coding

    def __post_init__(self) -> None:
        self._values: FloatArray | None = None  # until an answer comes

    def build(self, number: int, roster: Roster) -> base.Built:
        part = roster.dense_range(self.size, number)
        return base.Built(PullDense(self.table, self.after, self.coding), [], 4 * (part.stop - part.start))

    def take(self, number: int, roster: Roster, result: base.Result, frames: Frames) -> None:
        values, part = base.take_values(result, frames), roster.dense_range(self.size, number)
        if values.shape != (part.stop - part.start,):
            raise Malformed(f"asked for {part.stop - part.start} values of {self.table}, got {list(values.shape)}")
        if len(values) == self.size and values.flags.aligned:
            self._values = values
            return
        if self._values is None or not self._values.flags.writeable:
            self._values = np.empty(self.size, np.float32)
        self._values[part] = values

    def result(self) -> FloatArray:
        return self._values if self._values is not None else np.empty(0, np.float32)


@dataclass(eq=False)
class PushDenseCall(DenseCall):
    """Gradients of a dense table, or its first values: sequence 0."""

    table: str
    values: FloatArray
    sequence: int
    coding: Coding = EXACT
    samples: int | None = None
    part_of: Round | Iteration | None = None

    def __post_init__(self) -> None:
        self.size = len(self.values)

    def build(self, number: int, roster: Roster) -> base.Built:
        packed, frame = base.pack_coded(self.values[roster.dense_range(self.size, number)], self.coding)
        if not self.sequence:
            return base.Built(FillDense(self.table, packed), [frame])
        of = base.round_or_iteration(self.part_of)
        return base.Built(PushDense(self.table, self.sequence, packed, self.samples, *of), [frame])


OPS, RESULTS = (PullDense, PushDense, FillDense), (base.Done,)
