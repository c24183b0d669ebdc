"""Dense tables: every server has a range of the values, pulled whole, pushed as gradients."""

from __future__ import annotations

import numpy as np

from heterps.ps.arrays import FloatArray
from heterps.ps.ops.base import (
    DONE,
    Answer,
    Arrays,
    Built,
    Call,
    Done,
    Op,
    Push,
    Read,
    Result,
    Serving,
    Values,
    pack_coded,
    read_values,
    take_values,
)
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import EXACT, Coding, Count, Round
from heterps.ps.protocol.roster import Roster
from heterps.ps.shard.rounds import Contribution
from heterps.ps.shard.shard import Shard
from heterps.wire import Limits, Malformed, Packed


class PullDense(Read, frozen=True, tag="pull_dense"):
    """The server's range of a dense table, once the worker's own pushes up to `after` have been applied."""

    tables = "dense"
    coding: Coding

    def run(self, arrays: Arrays, to: Serving) -> Answer:
        values = to.shard.dense[self.table].values()
        to.counts.pulled(self.table, len(values))
        packed, frame = pack_coded(values, self.coding, to.room)
        return Values(packed), [frame]


class PushDense(Push, frozen=True, tag="push_dense"):
    """Gradients (a frame) of the server's range of a dense table."""

    tables = "dense"
    grads: Packed
    samples: Count | None = None
    round: Round | None = None

    @property
    def contributes_to(self) -> Round | None:
        return self.round

    def unpack(self, frames: Frames, shard: Shard, limits: Limits) -> Arrays:
        dense = shard.dense[self.table]
        self.check_gradients(dense.spec, self.samples)
        return [self.finite(read_values(self, self.grads, frames, (dense.size,), limits))]

    def run(self, arrays: Arrays, to: Serving) -> Answer:
        push = Contribution(None, arrays[0].view(np.float32), self.samples)
        dense = to.shard.dense[self.table]
        return self.once(to, len(push.grads), lambda: dense.push(to.source, self.sequence, push, self.round))


class FillDense(Op, frozen=True, tag="fill_dense"):
    """First values (a frame) of the server's range of a dense table. Only the first fill of a table counts."""

    tables = "dense"
    values: Packed

    def unpack(self, frames: Frames, shard: Shard, limits: Limits) -> Arrays:
        return [read_values(self, self.values, frames, (shard.dense[self.table].size,), limits)]

    def run(self, arrays: Arrays, to: Serving) -> Answer:
        to.shard.dense[self.table].fill(arrays[0].view(np.float32))
        return DONE


class DenseCall(Call):
    """A call that concerns every server that has some of the `size` values of a dense table."""

    size: int

    def concerns(self, number: int, roster: Roster) -> bool:
        part = roster.dense_range(self.size, number)
        return bool(part.stop > part.start)


class PullDenseCall(DenseCall):
    """The values of a dense table."""

    def __init__(self, table: str, size: int, after: int, coding: Coding) -> None:
        self.table = table
        self.size = size
        self._values = np.empty(size, np.float32)
        self._after, self._coding = after, coding

    def build(self, number: int, roster: Roster) -> Built:
        part = roster.dense_range(self.size, number)
        return Built(PullDense(self.table, self._after, self._coding), [], 4 * (part.stop - part.start))

    def take(self, number: int, roster: Roster, result: Result, frames: Frames) -> None:
        values, part = take_values(result, frames), roster.dense_range(self.size, number)
        if values.shape != (part.stop - part.start,):
            raise Malformed(f"asked for {part.stop - part.start} values of {self.table}, got {list(values.shape)}")
        self._values[part] = values

    def result(self) -> FloatArray:
        return self._values


class PushDenseCall(DenseCall):
    """Gradients of a dense table, or its first values: sequence 0."""

    def __init__(
        self,
        table: str,
        values: FloatArray,
        sequence: int,
        coding: Coding = EXACT,
        samples: int | None = None,
        round: Round | None = None,
    ) -> None:
        self.table = table
        self.size = len(values)
        self._values, self._sequence, self._coding = values, sequence, coding
        self._samples, self._round = samples, round

    def build(self, number: int, roster: Roster) -> Built:
        packed, frame = pack_coded(self._values[roster.dense_range(self.size, number)], self._coding)
        if not self._sequence:
            return Built(FillDense(self.table, packed), [frame])
        return Built(PushDense(self.table, self._sequence, packed, self._samples, self._round), [frame])


OPS, RESULTS = (PullDense, PushDense, FillDense), (Done,)
