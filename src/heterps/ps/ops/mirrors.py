"""Mirrors: second servers that hold the same shards, change by change, and their messages.

    keeper (the coordinator's)   Lead(roster)      --> every server and mirror, again and again; answered by Led
    server                       Fill(1), Fill(2)  --> its new mirror: a copy of the shard, part by part
                                 MirrorOps(3), ... --> every request that changes tables, in the order of its log
    mirror                       MirrorAck(3)      --> its server: answers that waited for these may go

The sender numbers what it sends to a mirror: 1, 2, 3, ... The mirror takes it in this order and in no other, as a
server does with the pushes of a worker. MirrorOps is in requests.py, because it has ops of all families.
"""

from __future__ import annotations

from msgspec import Struct

from heterps.errors import MirrorDiffers
from heterps.ps.ops import base
from heterps.ps.protocol.frames import (
    Frames,
    MetadataInfo,
    PartInfo,
    pack_metadata,
    pack_part,
    unpack_metadata,
    unpack_part,
)
from heterps.ps.protocol.messages import Count, Ordinal
from heterps.ps.protocol.roster import Roster
from heterps.ps.shard.copies import Copied, CopiedMetadata, CopyManifest, Filling, table_digest
from heterps.ps.shard.shard import Shard
from heterps.wire import Frame


class Lead(Struct, frozen=True, tag="lead"):
    """Tells a server to follow `roster`, if it is newer, and to answer, which shows that it lives.

    `heard` is the id of the last Lead to this server whose answer has come. A server with a mirror may serve for
    `lease_s` after it took that Lead, and no longer: its mirror may be in its place then.
    """

    id: Ordinal
    roster: Roster
    heard: Count
    lease_s: float


class Led(Struct, frozen=True, tag="led"):
    """The answer to Lead: the server follows `epoch`. A mirror `is_synced` once it has all that its server has said to
    be done; `differs` tells what differs in the two. One that `is_leaving` was told to end, and soon will."""

    id: Ordinal
    epoch: Ordinal
    is_synced: bool = False
    differs: str = ""
    is_leaving: bool = False


class Fill(Struct, frozen=True, tag="fill"):
    """A part of the copy of a shard (frames): rows or values of `table`, what it knows besides, or the manifest."""

    id: Ordinal
    table: str = ""
    part: PartInfo | None = None
    metadata: MetadataInfo | None = None
    num_pushes: Count = 0


class MirrorAck(Struct, frozen=True, tag="taken"):
    """A mirror has all up to number `id`. With a `roster`, it is no mirror of the sender any more."""

    id: Count
    differs: str = ""
    roster: Roster | None = None


def pack_fill(copied: Copied, number: int) -> tuple[Fill, list[Frame]]:
    """Return a part of a copy as a message."""
    if isinstance(copied.what, bytes):
        return Fill(number), [copied.what]
    if isinstance(copied.what, CopiedMetadata):
        infos, frames = pack_metadata(copied.what.metadata)
        return Fill(number, copied.table, metadata=infos, num_pushes=copied.what.num_pushes), frames
    part, frames = pack_part(copied.what)
    return Fill(number, copied.table, part), frames


def take_fill(fill: Fill, frames: Frames, filling: Filling) -> CopyManifest | None:
    """Put a part of a copy into the shard that is filled; returns the manifest when that is the last."""
    if fill.part is not None:
        filling.put(fill.table, unpack_part(fill.part, frames))
    elif fill.metadata is not None:
        filling.resume(fill.table, CopiedMetadata(fill.num_pushes, unpack_metadata(fill.metadata, frames)))
    else:
        return filling.end(bytes(frames.take()))
    return None


# --- are both equal? -------------------------------------------------------------------------------------------------


class CompareMirror(base.Op, frozen=True, tag="compare_mirror"):
    """Compare a table with that of the server's mirror, if it has one: `mirror_differs` where they are not equal."""

    tables = "any"

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        to.note(ExpectDigest(self.table, table_digest(shard, self.table)), [])
        return base.Done(), []


class ExpectDigest(base.Op, frozen=True, tag="expect_digest"):
    """Tell a mirror the digest that a table of it must have."""

    tables = "any"
    digest: str

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        found = table_digest(shard, self.table)
        if found != self.digest:
            raise MirrorDiffers(f"table {self.table} has digest {found}, and {self.digest} where it is mirrored from")
        return base.Done(), []


OPS, RESULTS = (CompareMirror, ExpectDigest), ()
