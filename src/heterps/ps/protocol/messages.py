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

from typing import Annotated, Literal

from msgspec import Meta, Struct

from heterps.ps.protocol.roster import Roster
from heterps.ps.table.metadata import TableCounters
from heterps.ps.table.tiers import TierCounts
from heterps.wire import Codec, Limits, Packed, PackedKeys
from heterps.wire.arrays import Compression, Dtype

Count = Annotated[int, Meta(ge=0, lt=2**62)]
Ordinal = Annotated[int, Meta(ge=1, lt=2**62)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Path = Annotated[str, Meta(min_length=1, max_length=4096)]
Paths = Annotated[tuple[Path, ...], Meta(max_length=4096)]

# --- ops and their results -------------------------------------------------------------------------------------------


class Coding(Struct, frozen=True, array_like=True):
    """How values are to travel."""

    dtype: Dtype = "fp32"
    compression: Compression | None = None
    least_bytes: Count = 4096


class Round(Struct, frozen=True, array_like=True):
    """A push with it is contribution `part`, of 0 to `parts` - 1, to round `number`, from 1 on, of its table."""

    number: Annotated[int, Meta(ge=1, lt=2**62)]
    part: Annotated[int, Meta(ge=0, lt=2**62)]
    parts: Annotated[int, Meta(ge=1, lt=2**62)]


class PullRows(Struct, frozen=True, tag="pull_rows"):
    """Rows of `keys` (a frame), as they are once the worker's own pushes up to `after` have been applied."""

    table: Name
    keys: PackedKeys
    after: Count
    create: bool
    coding: Coding


class PushRows(Struct, frozen=True, tag="push_rows"):
    """Gradients `grads` (a frame) of `keys` (a frame), which differ. Applied exactly once, in order of `sequence`.

    It holds all keys of this push whose home is the server, none included: every server counts every push. With a
    `round` it is kept until all parts of that have come, and they are applied as one.
    """

    table: Name
    sequence: Ordinal
    keys: PackedKeys
    grads: Packed
    samples: Count | None = None  # that the job had seen before, for schedules; of a round, those of its part 0 count
    round: Round | None = None


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
    round: Round | None = None


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


class SaveRows(Struct, frozen=True, tag="save_rows"):
    """Write the rows that the server has of a sparse table to the file `path` of the folder that all share."""

    table: Name
    after: Count
    path: Path


class FindRows(Struct, frozen=True, tag="find_rows"):
    """Whether the server can read these files."""

    table: Name
    after: Count
    paths: Paths


class LoadRows(Struct, frozen=True, tag="load_rows"):
    """Read the rows whose home the server is from these files, of a table that has seen `num_pushes`. A push like
    others, for an empty table."""

    table: Name
    sequence: Ordinal
    num_pushes: Count
    paths: Paths


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
    """Applied, or kept for its round, now or by an earlier copy of the request."""


class Exported(Struct, frozen=True, tag="exported"):
    """A part (frames) of a table that has seen `num_pushes`; none where the table has no rows or values here."""

    num_pushes: Count
    num_parts: Count
    part: PartInfo | None = None


class Kept(Struct, frozen=True, tag="kept"):
    """Upkeep (frames) of a table that has seen `num_pushes`."""

    num_pushes: Count
    arrays: UpkeepInfo


class Saved(Struct, frozen=True, tag="saved"):
    """The file that was written; none where the server cannot see its folder. Or why not: `kind` is the name of a
    class in heterps.errors."""

    num_bytes: Count | None = None
    xxh3: str = ""
    kind: Literal["", "StorageError", "NotFinite"] = ""
    text: str = ""


class Found(Struct, frozen=True, tag="found"):
    """Whether all files are there."""

    are_there: bool


class Counted(Struct, frozen=True, tag="counted"):
    """Of the shard of a sparse table; `tiers` where it has them."""

    num_rows: Count
    num_bytes: Count
    counters: TableCounters
    tiers: TierCounts | None = None


Push = PushRows | PushDense | Import | Resume | LoadRows
Read = PullRows | PullDense | Export | ReadUpkeep | CountRows | SaveRows | FindRows
Op = Push | Read | FillDense | EndExport
Result = Values | Done | Exported | Kept | Counted | Saved | Found

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


Code = Literal[
    "bad_request",
    "not_finite",
    "other_tables",
    "stale_incarnation",
    "stale_epoch",
    "later",
    "unknown_worker",
    "failed",
]


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


class Prepare(Struct, frozen=True, tag="prepare"):
    """`roster` is to be the next: end the rounds that have begun, and begin no others before Switch."""

    id: Count
    roster: Roster


class Switch(Struct, frozen=True, tag="switch"):
    """Follow `roster`, which is the next."""

    id: Count
    roster: Roster


class Fetch(Struct, frozen=True, tag="fetch"):
    """Chunk `number` of what goes to server `target` in `epoch`."""

    id: Count
    epoch: Ordinal
    target: Count
    number: Count


class ChunkReply(Struct, frozen=True, tag="chunk"):
    """The frames: the manifest for number 0, a part of `table` else."""

    id: Count
    last: bool
    table: str = ""
    part: PartInfo | None = None


class Deliver(Struct, frozen=True, tag="deliver"):
    """A chunk as `source` gave it, with its frames."""

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
    """To Prepare, Switch, Deliver and Forget: it is so now, or was already."""

    id: Count


ToServer = Hello | Request | AskStats | AskRoster | Prepare | Switch | Fetch | Deliver | Forget
FromServer = Welcome | Reply | Refused | StatsReply | ChunkReply | Agreed


def server_codec(limits: Limits = Limits()) -> Codec[ToServer]:
    """Decodes what a server receives."""
    return Codec(ToServer, limits)


def client_codec(limits: Limits = Limits()) -> Codec[FromServer]:
    """Decodes what a client receives."""
    return Codec(FromServer, limits)
