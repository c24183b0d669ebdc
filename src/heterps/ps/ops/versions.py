"""Versions of sparse tables, for those who follow a run and for checkpoints: servers write what changed since the last.

coordinator --ReadGone(since)--> which keys went since that version; unknown to a server that is new or whose rows moved
            --SaveRows(path, version)--> every server writes its rows that changed: row_files.py
"""

from __future__ import annotations

import numpy as np

from heterps.arrays import KeyArray
from heterps.ps.ops import base
from heterps.ps.protocol.frames import ArrayInfo, Frames, pack_arrays, unpack_array
from heterps.ps.protocol.messages import Count
from heterps.ps.shard.shard import Shard
from heterps.ps.shard.versions import keys_gone
from heterps.ps.table.changes import Reader
from heterps.wire import Malformed


class ReadGone(base.Read, frozen=True, tag="read_gone"):
    """Which keys of a sparse table lost their row since version `since`."""

    since: Count
    reader: Reader

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        gone = keys_gone(shard.sparse[self.table], self.since, self.reader)
        if gone is None:
            return Gone(), []
        (info,), frames = pack_arrays((gone,))
        return Gone(info), frames


class Gone(base.Result, frozen=True, tag="gone"):
    """Keys (a frame); none where the server does not know that version."""

    keys: ArrayInfo | None = None


class ReadGoneCall(base.Ask[Gone]):
    """The keys of a sparse table that lost their row since a version; None where a server does not know it."""

    def __init__(self, table: str, after: int, since: int, reader: Reader) -> None:
        super().__init__(ReadGone(table, after, since, reader), Gone)

    def read(self, result: Gone, frames: Frames) -> KeyArray | None:
        if result.keys is None:
            return None
        if result.keys.dtype != "<u8" or len(result.keys.shape) != 1:
            raise Malformed(f"keys are <u8 of one axis, got {result.keys.dtype} {list(result.keys.shape)}")
        keys: KeyArray = np.asarray(unpack_array(result.keys, frames.take()), np.uint64)
        return keys

    def result(self) -> KeyArray | None:
        parts = list(self._answers.values())
        return None if any(part is None for part in parts) else np.concatenate(parts)


OPS, RESULTS = (ReadGone,), (Gone,)
