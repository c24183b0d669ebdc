"""Rows of sparse tables: pulled by keys, pushed as gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps.ps.arrays import FloatArray, KeyArray
from heterps.ps.keys.dedup import Lookup
from heterps.ps.ops.base import (
    Answer,
    Arrays,
    Built,
    Call,
    Homes,
    Op,
    Push,
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
from heterps.ps.table.tiers import TieredTable
from heterps.wire import Limits, Malformed, Packed, PackedKeys, pack_keys, unpack_keys


class PullRows(Op, frozen=True, tag="pull_rows"):
    """Rows of `keys` (a frame), as they are once the worker's own pushes up to `after` have been applied."""

    keys: PackedKeys
    after: Count
    create: bool
    coding: Coding

    @property
    def needs(self) -> int:
        return self.after

    def unpack(self, frames: Frames, shard: Shard, limits: Limits) -> Arrays:
        return [_keys(self.keys, frames, shard, limits)]

    def run(self, arrays: Arrays, to: Serving) -> Answer:
        keys = arrays[0].view(np.uint64)
        to.counts.pulled(self.table, len(keys))
        table = to.shard.sparse[self.table]
        if self.create and isinstance(table, TieredTable):
            table.step()  # between the last push and this pull: no row of either is needed now
        out = None
        if self.coding.dtype == "fp32" and self.coding.compression is None:  # they can go at once where they travel
            memory = to.room(4 * len(keys) * table.dim)
            out = None if memory is None else memory.view(np.float32).reshape(len(keys), table.dim)
        packed, frame = pack_coded(table.pull(keys, out, create=self.create), self.coding, to.room)
        return Values(packed), [frame]


class PushRows(Push, frozen=True, tag="push_rows"):
    """Gradients `grads` (a frame) of `keys` (a frame), which differ.

    It holds all keys of this push whose home is the server, none included: every server counts every push. With a
    `round` it is kept until all parts of that have come, and they are applied as one.
    """

    keys: PackedKeys
    grads: Packed
    samples: Count | None = None  # that the job had seen before, for schedules; of a round, those of its part 0 count
    round: Round | None = None

    @property
    def contributes_to(self) -> Round | None:
        return self.round

    def unpack(self, frames: Frames, shard: Shard, limits: Limits) -> Arrays:
        table = shard.sparse[self.table]
        self.check_gradients(table, self.samples)
        keys = _keys(self.keys, frames, shard, limits)
        return [keys, self.finite(read_values(self, self.grads, frames, (len(keys), table.dim), limits))]

    def run(self, arrays: Arrays, to: Serving) -> Answer:
        push = Contribution(arrays[0].view(np.uint64), arrays[1].view(np.float32), self.samples)
        return self.once(
            to,
            len(arrays[0]),
            lambda: to.shard.push_rows(to.source, self.table, self.sequence, push, self.round),
        )


def _keys(packed: PackedKeys, frames: Frames, shard: Shard, limits: Limits) -> KeyArray:
    keys = unpack_keys(packed, frames.take(), limits)
    if wrong := shard.home_error(keys):
        raise Malformed(wrong)
    return keys


class PullRowsCall(Call):
    """Rows of the unique keys of a lookup."""

    def __init__(self, table: str, lookup: Lookup, dim: int, *, after: int, create: bool, coding: Coding) -> None:
        self.table = table
        self._unique = lookup.unique
        self._homes = Homes(lookup.unique, lookup.bounds)
        self._dim = dim
        self._rows: FloatArray | None = None  # until an answer comes
        self._after, self._create, self._coding = after, create, coding

    def concerns(self, number: int, roster: Roster) -> bool:
        return len(self._unique[self._homes.where(number, roster.num_shards)]) > 0

    def build(self, number: int, roster: Roster) -> Built:
        keys = self._unique[self._homes.where(number, roster.num_shards)]
        packed, frame = pack_keys(keys)
        op = PullRows(self.table, packed, self._after, self._create, self._coding)
        return Built(op, [frame], len(keys) * self._dim * 4)

    def take(self, number: int, roster: Roster, result: Result, frames: Frames) -> None:
        rows = take_values(result, frames)
        where = self._homes.where(number, roster.num_shards)
        num_keys = len(self._unique[where])
        if rows.shape != (num_keys, self._dim):
            raise Malformed(f"asked for rows {[num_keys, self._dim]} of {self.table}, got {list(rows.shape)}")
        if roster.num_shards == 1 and rows.flags.writeable and rows.flags.aligned:
            self._rows = rows  # all of them: the frame is nobody else's
            return
        if self._rows is None:
            self._rows = np.empty((len(self._unique), self._dim), np.float32)
        self._rows[where] = rows

    def result(self) -> FloatArray:
        return self._rows if self._rows is not None else np.empty((0, self._dim), np.float32)


class PushRowsCall(Call):
    """Gradients of unique keys. Every server gets a part, be it empty: each counts all pushes.

    summed  of all keys, or a list of them by the shards of the lookup
    """

    def __init__(
        self,
        table: str,
        lookup: Lookup,
        summed: FloatArray | list[FloatArray],
        sequence: int,
        coding: Coding = EXACT,
        samples: int | None = None,
        round: Round | None = None,
    ) -> None:
        self.table = table
        self._unique = lookup.unique
        self._homes = Homes(lookup.unique, lookup.bounds)
        self._summed, self._sequence, self._coding = summed, sequence, coding
        self._samples, self._round = samples, round

    def build(self, number: int, roster: Roster) -> Built:
        where = self._homes.where(number, roster.num_shards)
        keys, keys_frame = pack_keys(self._unique[where])
        grads, grads_frame = pack_coded(self._grads(number, where), self._coding)
        op = PushRows(self.table, self._sequence, keys, grads, self._samples, self._round)
        return Built(op, [keys_frame, grads_frame])

    def _grads(self, number: int, where: slice | NDArray[np.intp]) -> FloatArray:
        if isinstance(self._summed, list):
            if isinstance(where, slice):
                return self._summed[number]
            self._summed = np.concatenate(self._summed)  # the roster has another number of servers now
        return self._summed[where]


OPS, RESULTS = (PullRows, PushRows), (Values,)
