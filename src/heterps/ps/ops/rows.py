"""Rows of sparse tables: pulled by keys, pushed as gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.ps.keys.dedup import Lookup
from heterps.ps.ops import base
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import EXACT, Coding, Count, Iteration, Round
from heterps.ps.protocol.roster import Roster
from heterps.ps.shard.rounds import Contribution
from heterps.ps.shard.shard import Shard
from heterps.ps.table.tiers import TieredTable
from heterps.wire import Limits, Malformed, Packed, PackedKeys, pack_keys, unpack_keys


class PullRows(base.Op, frozen=True, tag="pull_rows"):
    """Rows of `keys` (a frame), as they are once the worker's own pushes up to `after` have been applied."""

    keys: PackedKeys
    after: Count
    create: bool
    coding: Coding

    @property
    def needs(self) -> int:
        return self.after

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        keys, table = _keys(self.keys, frames, shard, limits), shard.sparse[self.table]

        def pull(to: base.Serving) -> base.Answer:
            to.counts.pulled(self.table, len(keys))
            if self.create and isinstance(table, TieredTable):
                table.step()  # between the last push and this pull: no row of either is needed now
            out = base.room_for((len(keys), table.dim), self.coding, to.room)
            before = len(table)
            values = table.pull(keys, out, create=self.create)
            if len(table) > before:
                created = keys if isinstance(table, TieredTable) else table.newest(len(table) - before)
                packed, frame = pack_keys(created)
                to.note(CreateRows(self.table, packed), [frame])
            return base.answer_values(values, self.coding, to.room)

        return pull


class CreateRows(base.Op, frozen=True, tag="create_rows"):
    """Make rows of those `keys` (a frame) that have none: what a pull has done to the server that a mirror mirrors."""

    changes = True
    keys: PackedKeys

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        keys, table = _keys(self.keys, frames, shard, limits), shard.sparse[self.table]

        def create(_: base.Serving) -> base.Answer:
            table.pull(keys)
            return base.Done(), []

        return create


class PushRows(base.Push, frozen=True, tag="push_rows"):
    """Gradients `grads` (a frame) of `keys` (a frame), which differ.

    It holds all keys of this push whose home is the server, none included: every server counts every push. With a
    `round` it is kept until all parts of that have come, and they are applied as one.
    """

    keys: PackedKeys
    grads: Packed
    samples: Count | None = None  # that the job had seen before, for schedules; of a round, those of its part 0 count
    round: Round | None = None
    iteration: Iteration | None = None  # that it belongs to, outside rounds

    @property
    def contribution(self) -> tuple[Round, int] | None:
        return None if self.round is None else (self.round, 8 * self.keys.num_keys + 4 * prod(self.grads.shape))

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        table = shard.sparse[self.table]
        self.check_gradients(table.schedule, self.samples)
        keys = _keys(self.keys, frames, shard, limits)
        grads = self.finite(base.read_values(self, self.grads, frames, (len(keys), table.dim), limits))
        push = Contribution(keys, grads, self.samples)
        return self.once(
            shard,
            len(keys),
            lambda source: shard.push_rows(source, self.table, self.sequence, push, self.round or self.iteration),
        )


def _keys(packed: PackedKeys, frames: Frames, shard: Shard, limits: Limits) -> KeyArray:
    keys = unpack_keys(packed, frames.take(), limits)
    if wrong := shard.home_error(keys):
        raise Malformed(wrong)
    return keys


@dataclass(eq=False)
class PullRowsCall(base.Call):
    """Rows of the unique keys of a lookup."""

    table: str
    lookup: Lookup
    dim: int
    after: int
    create: bool
    coding: Coding

    def __post_init__(self) -> None:
        self._homes = base.Homes(self.lookup.unique, self.lookup.bounds)
        self._rows: FloatArray | None = None  # until an answer comes

    def concerns(self, number: int, roster: Roster) -> bool:
        return len(self.lookup.unique[self._homes.where(number, roster.num_shards)]) > 0

    def build(self, number: int, roster: Roster) -> base.Built:
        keys = self.lookup.unique[self._homes.where(number, roster.num_shards)]
        packed, frame = pack_keys(keys)
        op = PullRows(self.table, packed, self.after, self.create, self.coding)
        return base.Built(op, [frame], len(keys) * self.dim * 4)

    def take(self, number: int, roster: Roster, result: base.Result, frames: Frames) -> None:
        rows, unique = base.take_values(result, frames), self.lookup.unique
        where = self._homes.where(number, roster.num_shards)
        num_keys = len(unique[where])
        if rows.shape != (num_keys, self.dim):
            raise Malformed(f"asked for rows {[num_keys, self.dim]} of {self.table}, got {list(rows.shape)}")
        if roster.num_shards == 1 and rows.flags.writeable and rows.flags.aligned:
            self._rows = rows  # all of them: the frame is nobody else's
            return
        if self._rows is None:
            self._rows = np.empty((len(unique), self.dim), np.float32)
        self._rows[where] = rows

    def result(self) -> FloatArray:
        return self._rows if self._rows is not None else np.empty((0, self.dim), np.float32)


@dataclass(eq=False)
class PushRowsCall(base.Call):
    """Gradients of unique keys. Every server gets a part, be it empty: each counts all pushes."""

    table: str
    lookup: Lookup
    summed: FloatArray | list[FloatArray]  # of all keys, or a list of them by the shards of the lookup
    sequence: int
    coding: Coding = EXACT
    samples: int | None = None
    part_of: Round | Iteration | None = None

    def __post_init__(self) -> None:
        self._homes = base.Homes(self.lookup.unique, self.lookup.bounds)

    def build(self, number: int, roster: Roster) -> base.Built:
        where = self._homes.where(number, roster.num_shards)
        keys, keys_frame = pack_keys(self.lookup.unique[where])
        grads, grads_frame = base.pack_coded(self._grads(number, where), self.coding)
        op = PushRows(self.table, self.sequence, keys, grads, self.samples, *base.round_or_iteration(self.part_of))
        return base.Built(op, [keys_frame, grads_frame])

    def _grads(self, number: int, where: slice | NDArray[np.intp]) -> FloatArray:
        if isinstance(self.summed, list):
            if isinstance(where, slice):
                return self.summed[number]
            self.summed = np.concatenate(self.summed)  # the roster has another number of servers now
        return self.summed[where]


OPS, RESULTS = (PullRows, CreateRows, PushRows), (base.Values,)
