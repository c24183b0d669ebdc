"""What a family of messages is made of: ops, which a server runs, and calls, by which a client asks for them.

    client   call.build(server) --> op and frames for each server it concerns
             call.take(server, result, frames) <-- each answer         call.result() when all have answered
    server   op.check(frames, shard) --> work, or the whole request is refused       work() --> result, frames

Before its work is done a request may be held, so `check` looks at nothing that a push could change. A call can be built
anew for another roster at any time, and answers taken twice change nothing: so a change of roster is met by asking
everything again that has no full answer yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.config import Schedule
from heterps.errors import NotFinite
from heterps.ps.keys.placement import shard_numbers
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import Coding, Count, Iteration, Name, Ordinal, Round
from heterps.ps.protocol.roster import Roster
from heterps.ps.shard.counts import ServerCounts
from heterps.ps.shard.ledger import PushSource, PushState
from heterps.ps.shard.shard import Shard
from heterps.ps.table.finite import first_not_finite
from heterps.ps.table.schedules import rate_at
from heterps.wire import Frame, Limits, Malformed, Packed, pack_values, unpack_values
from heterps.wire.arrays import Room

R = TypeVar("R", bound="Result")


class Result(Struct, frozen=True):
    """The answer to an op."""


Answer = tuple[Result, list[Frame]]


class Done(Result, frozen=True, tag="done"):
    """The op was applied, or kept for its round, now or by an earlier copy of the request."""


class Values(Result, frozen=True, tag="values"):
    """A frame of values: rows, or a range."""

    values: Packed


class InDoubt(Exception):
    """A push was begun and did not end, so that nobody can say what of it is in the table."""


# --- the server's side -----------------------------------------------------------------------------------------------


class Serving(NamedTuple):
    """Who asked for an op, what counts it, and where large frames for that peer can be made.

    note  is told ops, with their frames, that a mirror must run because of this one; those that are known to change
          tables (`Op.changes`) need not be told
    stats returns the figures of the whole server
    """

    source: PushSource
    counts: ServerCounts
    room: Room = lambda _: None
    note: Callable[[Op, list[Frame]], None] = lambda *_: None
    stats: Callable[[], Any] = dict


Work = Callable[[Serving], Answer]


class Op(Struct, frozen=True):
    """What a worker wants of a server. It says itself which frames are its own and what is in them."""

    tables: ClassVar[Literal["sparse", "dense", "any"]] = "sparse"
    changes: ClassVar[bool] = False  # whether it changes a table, so that a mirror must run it too
    table: Name

    @property
    def needs(self) -> int:
        """The last push of the worker to the table that must have been applied before."""
        return 0

    def is_repeat(self, shard: Shard, source: PushSource) -> bool:
        """Whether what it changes was changed by an earlier copy of it."""
        return False

    def check(self, frames: Frames, shard: Shard, limits: Limits) -> Work:
        """Return what is to be done when the time has come; WireError where op, frames and shard do not fit together,
        and NotFinite where a gradient is NaN or infinite."""
        is_dense = self.tables == "dense" or (self.tables == "any" and self.table in shard.dense)
        if self.table not in (shard.dense if is_dense else shard.sparse):
            raise Malformed(f"there is no {'dense' if is_dense else 'sparse'} table {self.table!r}")
        return self.prepare(frames, shard, limits)

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> Work:
        """Do as `check` for a table that is there. An op without frames only has to `run`."""
        return partial(self.run, shard)

    def run(self, shard: Shard, to: Serving) -> Answer:
        """Do what the op asks for."""
        raise NotImplementedError


class Read(Op, frozen=True):
    """An op that reads a table once the worker's own pushes up to `after` have been applied."""

    after: Count

    @property
    def needs(self) -> int:
        return self.after


class Push(Op, frozen=True):
    """An op that changes a table. It is applied exactly once, in order of `sequence`."""

    changes = True
    sequence: Ordinal

    @property
    def needs(self) -> int:
        return self.sequence - 1

    def is_repeat(self, shard: Shard, source: PushSource) -> bool:
        return self.sequence <= shard.pieces_of(self.table).applied(source, self.table)

    @property
    def contribution(self) -> tuple[Round, int] | None:
        """The round that this push is a part of, and the bytes of that part."""
        return None

    def once(self, shard: Shard, num_rows: int | None, apply: Callable[[PushSource], None]) -> Work:
        """Return the work of a push: apply it unless the ledger has it, and count a repeat otherwise.

        `num_rows` are counted as pushed; None: it brings no gradients of its own.
        """

        def work(to: Serving) -> Answer:
            match shard.pieces_of(self.table).state(to.source, self.table, self.sequence):
                case PushState.APPLIED:
                    to.counts.repeats += 1
                case PushState.NEXT:
                    apply(to.source)
                    if num_rows is not None:
                        to.counts.pushed(self.table, num_rows, self.contribution[0].parts if self.contribution else 1)
                case PushState.APPLYING:
                    raise InDoubt(f"push {self.sequence} of {to.source.worker} was begun before and did not end")
                case PushState.EARLY:
                    raise AssertionError("a push was run before its predecessor")
            return Done(), []

        return work

    def check_gradients(self, schedule: Schedule, samples: int | None) -> None:
        """Raise Malformed where the schedule needs samples that are not told, or a round has no such part."""
        try:
            rate_at(schedule, samples)
        except ValueError as error:
            raise Malformed(f"table {self.table}: {error}") from None
        round = self.contribution[0] if self.contribution else None
        if round is not None and round.part >= round.parts:
            raise Malformed(f"table {self.table}: part {round.part} of a round that has {round.parts}, 0 the first")

    def finite(self, grads: FloatArray) -> FloatArray:
        """Return the gradients themselves; NotFinite where one of them would spoil the table."""
        if (at := first_not_finite(grads)) >= 0:
            raise NotFinite(f"a gradient of table {self.table} is {grads.flat[at]}: it is not applied")
        return grads


def read_values(op: Op, packed: Packed, frames: Frames, expected: tuple[int, ...], limits: Limits) -> FloatArray:
    """Return the values of a frame; WireError where they do not have the expected shape."""
    if packed.shape != expected:
        raise Malformed(f"table {op.table} needs values {list(expected)} here, got {list(packed.shape)}")
    return unpack_values(packed, frames.take(), limits)


def pack_coded(values: FloatArray, coding: Coding, room: Room = lambda _: None) -> tuple[Packed, Frame]:
    """Pack values as `coding` says."""
    return pack_values(values, coding.dtype, coding.compression, coding.least_bytes, room)


def room_for(shape: tuple[int, ...], coding: Coding, room: Room) -> FloatArray | None:
    """Return memory from which values travel without another copy; None where there is none, or they are converted."""
    memory = room(4 * math.prod(shape)) if coding.dtype == "fp32" and coding.compression is None else None
    return None if memory is None else memory.view(np.float32).reshape(shape)


def answer_values(values: FloatArray, coding: Coding, room: Room) -> Answer:
    """Return values as the answer to a pull."""
    packed, frame = pack_coded(values, coding, room)
    return Values(packed), [frame]


# --- the client's side -----------------------------------------------------------------------------------------------


class Built(NamedTuple):
    """The op and frames of a call for one server."""

    op: Op
    frames: list[Frame]
    reply_bytes: int = 0  # expected


class Call:
    """What a worker asks of all servers at once. Unless a family says otherwise, each of them answers Done."""

    table: str

    @property
    def name(self) -> str:
        """What is asked, for error messages."""
        return type(self).__name__.removesuffix("Call")

    def concerns(self, number: int, roster: Roster) -> bool:
        """Whether server `number` has anything to do with it."""
        return True

    def build(self, number: int, roster: Roster) -> Built:
        """Return the op for server `number`, which it concerns."""
        raise NotImplementedError

    def take(self, number: int, roster: Roster, result: Result, frames: Frames) -> None:
        """Take an answer; WireError where it is not what was asked for."""
        expect(result, Done)

    def result(self) -> Any:
        """Return what the caller gets once every server has answered."""
        return None


def round_or_iteration(part_of: Round | Iteration | None) -> tuple[Round | None, Iteration | None]:
    """Return the round that a push is a part of, and the iteration that it belongs to: it has one of them, or none."""
    return (part_of, None) if isinstance(part_of, Round) else (None, part_of)


class Ask(Call, Generic[R]):
    """The same op for every server; the result is what each answered, by number."""

    def __init__(self, op: Op, kind: type[R], reply_bytes: int = 0) -> None:
        self.table = op.table
        self.op = op
        self._kind, self._reply_bytes = kind, reply_bytes
        self._epoch = 0
        self._answers: dict[int, Any] = {}

    @property
    def name(self) -> str:
        return type(self.op).__name__

    def op_for(self, number: int, roster: Roster) -> Op:
        """Return the op for server `number`."""
        return self.op

    def read(self, result: R, frames: Frames) -> Any:
        """Return what is kept of an answer."""
        return result

    def build(self, number: int, roster: Roster) -> Built:
        if self._epoch != roster.epoch:
            self._epoch, self._answers = roster.epoch, {}  # of servers that have other parts now
        return Built(self.op_for(number, roster), [], self._reply_bytes)

    def take(self, number: int, roster: Roster, result: Result, frames: Frames) -> None:
        self._answers[number] = self.read(expect(result, self._kind), frames)

    def result(self) -> Any:
        return self._answers


class Homes:
    """Where the keys of a call are, by server: as its lookup has them, or found anew for another roster."""

    def __init__(self, keys: KeyArray, bounds: NDArray[np.int64] | None = None) -> None:
        self._keys = keys
        self._bounds = bounds
        self._found: dict[int, list[NDArray[np.intp]]] = {}  # by number of shards

    def where(self, number: int, num_shards: int) -> slice | NDArray[np.intp]:
        """Return the positions of the keys whose home server `number` is."""
        if self._bounds is not None and len(self._bounds) == num_shards + 1:
            return slice(int(self._bounds[number]), int(self._bounds[number + 1]))
        if num_shards not in self._found:
            homes = shard_numbers(self._keys, num_shards)
            self._found = {num_shards: [np.flatnonzero(homes == shard) for shard in range(num_shards)]}
        return self._found[num_shards][number]


def take_values(result: Result, frames: Frames) -> FloatArray:
    return unpack_values(expect(result, Values).values, frames.take())


def expect(result: Result, kind: type[R]) -> R:
    """Return the result, which must be of this kind."""
    if not isinstance(result, kind):
        raise Malformed(f"expected {kind.__name__}, got {type(result).__name__}")
    return result
