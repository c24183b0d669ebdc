"""Calls: what a worker asks of all servers at once, and how their answers become one.

    call --build(server)--> op and frames for each server it concerns
         <--take(server, result, frames)-- each answer           result() when all have answered

A call can be built anew for another roster at any time, and answers taken twice change nothing: so a change of roster
is met by asking everything again that has no full answer yet.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from heterps.ps.keys.dedup import Lookup
from heterps.ps.keys.placement import shard_numbers
from heterps.ps.protocol import messages as m
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.roster import Roster
from heterps.wire import Frame, Malformed, pack_keys, pack_values, unpack_values

FloatArray = NDArray[np.float32]
KeyArray = NDArray[np.uint64]
Where = slice | NDArray[np.intp]
R = TypeVar("R")
EXACT = m.Coding()


class Built(NamedTuple):
    """A call, for one server."""

    op: m.Op
    frames: list[Frame]
    reply_bytes: int = 0  # expected


class Call(Protocol):
    @property
    def table(self) -> str: ...

    def concerns(self, number: int, roster: Roster) -> bool:
        """Whether server `number` has anything to do with it."""

    def build(self, number: int, roster: Roster) -> Built:
        """The op for server `number`, which it concerns."""

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:
        """An answer; WireError where it is not what was asked for."""

    def result(self) -> Any:
        """What the caller gets once every server has answered."""


class Homes:
    """Where the keys of a call are, by server: as its lookup has them, or found anew for another roster."""

    def __init__(self, keys: KeyArray, bounds: NDArray[np.int64] | None = None) -> None:
        self._keys = keys
        self._bounds = bounds
        self._found: dict[int, list[NDArray[np.intp]]] = {}  # by number of shards

    def where(self, number: int, num_shards: int) -> Where:
        if self._bounds is not None and len(self._bounds) == num_shards + 1:
            return slice(int(self._bounds[number]), int(self._bounds[number + 1]))
        if num_shards not in self._found:
            homes = shard_numbers(self._keys, num_shards)
            self._found = {num_shards: [np.flatnonzero(homes == shard) for shard in range(num_shards)]}
        return self._found[num_shards][number]


class Everywhere:
    """A call that concerns every server."""

    def concerns(self, number: int, roster: Roster) -> bool:  # noqa: ARG002
        return True


class Ranged:
    """A call that concerns every server that has some of the `size` values of a dense table."""

    size: int

    def concerns(self, number: int, roster: Roster) -> bool:
        part = roster.dense_range(self.size, number)
        return bool(part.stop > part.start)


class PullRowsCall:
    def __init__(self, table: str, lookup: Lookup, dim: int, *, after: int, create: bool, coding: m.Coding) -> None:
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
        op = m.PullRows(self.table, packed, self._after, self._create, self._coding)
        return Built(op, [frame], len(keys) * self._dim * 4)

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:
        rows = _values(result, frames)
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


class PushRowsCall(Everywhere):
    """Gradients of unique keys. Every server gets a part, be it empty: each counts all pushes.

    summed  of all keys, or a list of them by the shards of the lookup
    """

    def __init__(
        self,
        table: str,
        lookup: Lookup,
        summed: FloatArray | list[FloatArray],
        sequence: int,
        coding: m.Coding,
        samples: int | None = None,
        round: m.Round | None = None,
    ) -> None:
        self.table = table
        self._unique = lookup.unique
        self._homes = Homes(lookup.unique, lookup.bounds)
        self._summed, self._sequence, self._coding = summed, sequence, coding
        self._samples, self._round = samples, round

    def build(self, number: int, roster: Roster) -> Built:
        where = self._homes.where(number, roster.num_shards)
        keys, keys_frame = pack_keys(self._unique[where])
        grads, grads_frame = _pack(self._grads(number, where), self._coding)
        op = m.PushRows(self.table, self._sequence, keys, grads, self._samples, self._round)
        return Built(op, [keys_frame, grads_frame])

    def _grads(self, number: int, where: Where) -> FloatArray:
        if isinstance(self._summed, list):
            if isinstance(where, slice):
                return self._summed[number]
            self._summed = np.concatenate(self._summed)  # the roster has another number of servers now
        return self._summed[where]

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:  # noqa: ARG002
        check_result(result, m.Done)

    def result(self) -> None:
        return None


class PullDenseCall(Ranged):
    def __init__(self, table: str, size: int, after: int, coding: m.Coding) -> None:
        self.table = table
        self.size = size
        self._values = np.empty(size, np.float32)
        self._after, self._coding = after, coding

    def build(self, number: int, roster: Roster) -> Built:
        part = roster.dense_range(len(self._values), number)
        return Built(m.PullDense(self.table, self._after, self._coding), [], 4 * (part.stop - part.start))

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:
        values, part = _values(result, frames), roster.dense_range(len(self._values), number)
        if values.shape != (part.stop - part.start,):
            raise Malformed(f"asked for {part.stop - part.start} values of {self.table}, got {list(values.shape)}")
        self._values[part] = values

    def result(self) -> FloatArray:
        return self._values


class PushDenseCall(Ranged):
    """Gradients of a dense table, or its first values: sequence 0."""

    def __init__(
        self,
        table: str,
        values: FloatArray,
        sequence: int,
        coding: m.Coding,
        samples: int | None = None,
        round: m.Round | None = None,
    ) -> None:
        self.table = table
        self.size = len(values)
        self._values, self._sequence, self._coding = values, sequence, coding
        self._samples, self._round = samples, round

    def build(self, number: int, roster: Roster) -> Built:
        packed, frame = _pack(self._values[roster.dense_range(len(self._values), number)], self._coding)
        if not self._sequence:
            return Built(m.FillDense(self.table, packed), [frame])
        return Built(m.PushDense(self.table, self._sequence, packed, self._samples, self._round), [frame])

    def take(self, number: int, roster: Roster, result: m.Result, frames: Frames) -> None:  # noqa: ARG002
        check_result(result, m.Done)

    def result(self) -> None:
        return None


def _pack(values: FloatArray, coding: m.Coding) -> tuple[Any, Frame]:
    return pack_values(values, coding.dtype, coding.compression, coding.least_bytes)


def _values(result: m.Result, frames: Frames) -> FloatArray:
    return unpack_values(check_result(result, m.Values).values, frames.take())


def check_result(result: m.Result, kind: type[R]) -> R:
    if not isinstance(result, kind):
        raise Malformed(f"expected {kind.__name__}, got {type(result).__name__}")
    return result
