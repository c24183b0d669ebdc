"""What workers and servers say to each other: the headers. The arrays travel beside them as frames (see wire/).

    worker                                        server
    Hello(worker, incarnation, tables)       -->
                                             <--  Welcome(roster)
    Request(ops: push rows, pull rows, ...)  -->
                                             <--  Reply(results), one for each op, in their order
                                             <--  Refused(code, text, roster), and nothing was done

All that a worker wants of a server at one time is one request. Every op says itself which frames are its own and what
is in them: a server takes the frames of a message in turn, and refuses the whole message where anything is left over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from heterps.ps.cargo import ValuePart
from heterps.ps.roster import Roster
from heterps.ps.table.sparse import Rows
from heterps.ps.table.tiers import TierCounts
from heterps.ps.table.upkeep import NUM_COUNTERS, TableCounters, Upkeep, stack, unstack
from heterps.wire import Codec, Frame, Limits, Malformed, Packed, PackedKeys
from heterps.wire.arrays import Compression, Dtype

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Ordinal = Annotated[int, Meta(ge=1, lt=2**62)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]

# --- ops and their results -------------------------------------------------------------------------------------------


class Coding(Struct, frozen=True, array_like=True):
    """How values are to travel."""

    dtype: Dtype = "fp32"
    compression: Compression | None = None
    least_bytes: Count = 4096


class PullRows(Struct, frozen=True, tag="pull_rows"):
    """Rows of `keys` (a frame), as they are once the worker's own pushes up to `after` have been applied."""

    table: Name
    keys: PackedKeys
    after: Count
    create: bool
    coding: Coding


class PushRows(Struct, frozen=True, tag="push_rows"):
    """Gradients `grads` (a frame) of `keys` (a frame), which differ. Applied exactly once, in order of `sequence`.

    It holds all keys of this push whose home is the server, none included: every server counts every push.
    """

    table: Name
    sequence: Ordinal
    keys: PackedKeys
    grads: Packed
    samples: Count | None = None  # that the job had seen before, for schedules


class PullDense(Struct, frozen=True, tag="pull_dense"):
    """The server's range of a dense table, once the worker's own pushes up to `after` have been applied."""

    table: Name
    after: Count
    coding: Coding


class PushDense(Struct, frozen=True, tag="push_dense"):
    """Gradients (a frame) of the server's range of a dense table."""

    table: Name
    sequence: Ordinal
    grads: Packed
    samples: Count | None = None


class FillDense(Struct, frozen=True, tag="fill_dense"):
    """First values (a frame) of the server's range of a dense table. Only the first fill of a table counts."""

    table: Name
    values: Packed


class Export(Struct, frozen=True, tag="export"):
    """Part `part` of what the server has of a table, as it was when part 0 of this export was asked for.

    `number` tells the exports of a worker apart. The server keeps a table of several parts until it is told EndExport,
    and for a minute after the last question; then, and after a change of the roster, it answers `num_parts` 0.
    """

    table: Name
    after: Count
    number: Ordinal
    part: Count


class EndExport(Struct, frozen=True, tag="end_export"):
    """The worker has all parts."""

    table: Name
    number: Ordinal


class Import(Struct, frozen=True, tag="import"):
    """A part (frames) of a table that has seen `num_pushes`. A push like others. The first needs an empty table."""

    table: Name
    sequence: Ordinal
    num_pushes: Count
    is_first: bool
    part: PartInfo


class ReadUpkeep(Struct, frozen=True, tag="read_upkeep"):
    """What the shard of a sparse table knows besides its rows."""

    table: Name
    after: Count


class Resume(Struct, frozen=True, tag="resume"):
    """Upkeep (frames) for the shard of a sparse table that has seen `num_pushes`. A push like others."""

    table: Name
    sequence: Ordinal
    num_pushes: Count
    arrays: UpkeepInfo


class CountRows(Struct, frozen=True, tag="count_rows"):
    """How many rows and bytes the shard of a sparse table has."""

    table: Name
    after: Count


class ArrayInfo(Struct, frozen=True, array_like=True):
    """An array of any plain type as a frame, for what must keep every bit: rows on their way to another place."""

    dtype: Literal["<f4", "<f8", "<u8", "<i8", "<u4", "<i4", "<u2", "<i2", "|u1"]
    shape: tuple[Count, ...]


class PartInfo(Struct, frozen=True, array_like=True):
    """Frames of Rows; or, of a dense table from value `first` on, values [n] and their state [words a value, n]."""

    arrays: tuple[ArrayInfo, ...]
    first: Count | None = None


UpkeepInfo = Annotated[tuple[ArrayInfo, ...], Meta(min_length=4, max_length=4)]
"""Frames of the fields of Upkeep, for one shard."""


class Values(Struct, frozen=True, tag="values"):
    """A frame of values: rows, or a range."""

    values: Packed


class Done(Struct, frozen=True, tag="done"):
    """Applied, now or by an earlier copy of the request."""


class Exported(Struct, frozen=True, tag="exported"):
    """A part (frames) of a table that has seen `num_pushes`; none where the table has no rows or values here."""

    num_pushes: Count
    num_parts: Count
    part: PartInfo | None = None


class Kept(Struct, frozen=True, tag="kept"):
    """Upkeep (frames) of a table that has seen `num_pushes`."""

    num_pushes: Count
    arrays: UpkeepInfo


class Counted(Struct, frozen=True, tag="counted"):
    """Of the shard of a sparse table; `tiers` where it has them."""

    num_rows: Count
    num_bytes: Count
    counters: TableCounters
    tiers: TierCounts | None = None


Push = PushRows | PushDense | Import | Resume
Read = PullRows | PullDense | Export | ReadUpkeep | CountRows
Op = Push | Read | FillDense | EndExport
Result = Values | Done | Exported | Kept | Counted

# --- messages --------------------------------------------------------------------------------------------------------


class Hello(Struct, frozen=True, tag="hello"):
    """A worker begins to speak. `tables` is the digest of the tables that it expects."""

    id: Count
    worker: Name
    incarnation: Ordinal
    tables: str


class Welcome(Struct, frozen=True, tag="welcome"):
    id: Count
    roster: Roster


class Request(Struct, frozen=True, tag="request"):
    """What a worker wants of a server, made for the roster of `epoch`. A repeat has the same id."""

    id: Count
    worker: Name
    incarnation: Ordinal
    epoch: Ordinal
    ops: Annotated[tuple[Op, ...], Meta(min_length=1, max_length=256)]


class Reply(Struct, frozen=True, tag="reply"):
    id: Count
    results: tuple[Result, ...]


Code = Literal["bad_request", "other_tables", "stale_incarnation", "stale_epoch", "later", "unknown_worker", "failed"]


class Refused(Struct, frozen=True, tag="refused"):
    """Nothing of request `id` was done; `text` says why. With stale_epoch comes the roster to ask again by."""

    id: Count
    code: Code
    text: str
    roster: Roster | None = None


class AskStats(Struct, frozen=True, tag="ask_stats"):
    """Anybody may ask."""

    id: Count


class StatsReply(Struct, frozen=True, tag="stats"):
    """One frame: the JSON of stats.ServerStats."""

    id: Count


class AskRoster(Struct, frozen=True, tag="ask_roster"):
    """Anybody may ask; answered by Welcome."""

    id: Count


# Moves of slots between servers: see handover.py.


class Switch(Struct, frozen=True, tag="switch"):
    """Follow `roster`, which is the next."""

    id: Count
    roster: Roster


class Fetch(Struct, frozen=True, tag="fetch"):
    """Parcel `number` of what goes to server `target` in `epoch`."""

    id: Count
    epoch: Ordinal
    target: Count
    number: Count


class ParcelReply(Struct, frozen=True, tag="parcel"):
    """The frames: the label for number 0, a part of `table` else."""

    id: Count
    last: bool
    table: str = ""
    part: PartInfo | None = None


class Deliver(Struct, frozen=True, tag="deliver"):
    """A parcel as `source` gave it, with its frames."""

    id: Count
    epoch: Ordinal
    source: Count
    number: Count
    last: bool
    table: str
    part: PartInfo | None


class Forget(Struct, frozen=True, tag="forget"):
    """What was packed for `target` has arrived."""

    id: Count
    epoch: Ordinal
    target: Count


class Agreed(Struct, frozen=True, tag="agreed"):
    """To Switch, Deliver and Forget: it is so now, or was already."""

    id: Count


ToServer = Hello | Request | AskStats | AskRoster | Switch | Fetch | Deliver | Forget
FromServer = Welcome | Reply | Refused | StatsReply | ParcelReply | Agreed


def server_codec(limits: Limits = Limits()) -> Codec[ToServer]:
    """Decodes what a server receives."""
    return Codec(ToServer, limits)


def client_codec(limits: Limits = Limits()) -> Codec[FromServer]:
    """Decodes what a client receives."""
    return Codec(FromServer, limits)


# --- arrays that keep every bit --------------------------------------------------------------------------------------


def pack_arrays(arrays: tuple[NDArray[np.generic], ...]) -> tuple[tuple[ArrayInfo, ...], list[Frame]]:
    frames = [np.ascontiguousarray(array) for array in arrays]
    return tuple(ArrayInfo(frame.dtype.str, frame.shape) for frame in frames), list(frames)


def unpack_array(info: ArrayInfo, frame: memoryview) -> NDArray[np.generic]:
    """Malformed where frame and description do not fit."""
    expected = int(np.prod(info.shape, dtype=object)) * np.dtype(info.dtype).itemsize
    if expected != frame.nbytes:
        raise Malformed(f"an array {list(info.shape)} of {info.dtype} takes {expected} bytes, not {frame.nbytes}")
    return np.frombuffer(frame, info.dtype).reshape(info.shape)


ROW_DTYPES = ("<u8", "<f4", "<f4", "<f4", "<u4")
VALUE_DTYPES = ("<f4", "<f4")


def pack_part(part: Rows | ValuePart) -> tuple[PartInfo, list[Frame]]:
    """A part of a table, every bit of it, as frames."""
    infos, frames = pack_arrays(part if isinstance(part, Rows) else (part.values, part.state))
    return PartInfo(infos, None if isinstance(part, Rows) else part.first), frames


def unpack_part(info: PartInfo, frames: Frames) -> Rows | ValuePart:
    """What `pack_part` packed; Malformed where it is not that."""
    dtypes, ranks = tuple(array.dtype for array in info.arrays), [len(array.shape) for array in info.arrays]
    expected = ROW_DTYPES if info.first is None else VALUE_DTYPES
    if dtypes != expected:
        raise Malformed(f"a part of a table is arrays of {', '.join(expected)} here, not {', '.join(dtypes)}")
    arrays: list[Any] = [unpack_array(array, frames.take()) for array in info.arrays]
    if info.first is None:
        if ranks != [1, 2, 2, 1, 1] or len({len(array) for array in arrays}) > 1:
            raise Malformed(f"keys [n] and their rows do not fit: {[list(array.shape) for array in arrays]}")
        return Rows(*arrays)
    if ranks != [1, 2] or arrays[1].shape[1] != len(arrays[0]):
        raise Malformed(f"values [n] and their state [k, n] do not fit: {[list(array.shape) for array in arrays]}")
    return ValuePart(info.first, *arrays)


UPKEEP_DTYPES = ("<i8", "<i8", "<i8", "|u1")


def pack_upkeep(upkeep: Upkeep) -> tuple[UpkeepInfo, list[Frame]]:
    return pack_arrays(tuple(stack([upkeep]).values()))


def unpack_upkeep(infos: UpkeepInfo, frames: Frames) -> list[NDArray[np.generic]]:
    """The arrays that `pack_upkeep` packed; Malformed where they are not that."""
    shapes = [info.shape for info in infos]
    ranks = [len(shape) for shape in shapes]
    if tuple(info.dtype for info in infos) != UPKEEP_DTYPES or ranks != [1, 1, 2, 2] or any(s[0] != 1 for s in shapes):
        raise Malformed(f"upkeep is arrays of one shard, of {', '.join(UPKEEP_DTYPES)}; got shapes {shapes}")
    if shapes[2][1] != NUM_COUNTERS:
        raise Malformed(f"upkeep has {NUM_COUNTERS} counters, got {shapes[2][1]}")
    return [unpack_array(info, frames.take()) for info in infos]


def as_upkeep(arrays: Sequence[NDArray[np.generic]]) -> Upkeep:
    """The upkeep whose arrays `unpack_upkeep` gave."""
    kept = unstack(dict(zip(Upkeep._fields, arrays, strict=True)), 1)[0]
    assert kept is not None
    return kept


class Frames:
    """The frames of a message, taken in turn."""

    def __init__(self, frames: list[memoryview]) -> None:
        self._frames = frames
        self._at = 0

    def take(self) -> memoryview:
        if self._at == len(self._frames):
            raise Malformed(f"the ops of this message need more than its {len(self._frames)} frames")
        self._at += 1
        return self._frames[self._at - 1]

    def end(self) -> None:
        if self._at < len(self._frames):
            raise Malformed(f"the ops of this message need {self._at} frames, and {len(self._frames)} came")
