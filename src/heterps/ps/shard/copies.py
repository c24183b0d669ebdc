"""Copies of a shard for a mirror, part by part, and digests by which two shards are compared.

    rows, a table after another | what each table knows besides them | ranges of dense tables | the manifest, last

A copy is of one moment at which no contributions to rounds are kept. With it the mirror goes on exactly as the shard
would: it has the ledgers, the incarnations of workers, the hand of eviction and the sketch of admission too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import decode, encode
from numpy.typing import NDArray
from xxhash import xxh3_64

from heterps.hashing import mix64
from heterps.ps.protocol.parts import TablePart, split
from heterps.ps.shard.shard import Shard
from heterps.ps.shard.transfer import Chunk, PieceManifest, TransferManifest, from_chunks, make_transfer
from heterps.ps.table.index import kernel
from heterps.ps.table.metadata import TableMetadata, stack
from heterps.ps.table.rows import Rows
from heterps.wire import Malformed


class CopyManifest(Struct):
    """What a copy says besides rows and values: slots, ranges and ledgers, and how many rounds are over."""

    transfer: TransferManifest
    rounds: int


class CopiedMetadata(NamedTuple):
    """What a sparse table that has seen `num_pushes` knows besides its rows."""

    num_pushes: int
    metadata: TableMetadata


class Copied(NamedTuple):
    """A part of a copy: of `table`, or the manifest, which is the last."""

    table: str
    what: TablePart | CopiedMetadata | bytes


def copy_parts(shard: Shard, workers: dict[str, int], rounds: int) -> list[Copied]:
    """Return a copy of a shard that keeps no contributions; what changes later is not in it."""
    parts: list[Copied] = []
    for name, table in shard.sparse.items():
        parts += [Copied(name, part) for part in split(table.export_rows())]
        parts.append(Copied(name, CopiedMetadata(table.num_pushes, table.export_metadata())))
    dense = {name: table.copy(table.within) for name, table in shard.dense.items()}
    parts += [Copied(name, part) for name, pieces in dense.items() for each in pieces for part in split(each.part)]
    pieces = [PieceManifest(np.flatnonzero(piece.slots).tolist(), piece.ledger.copy()) for piece in shard.pieces]
    manifest = CopyManifest(make_transfer(pieces, workers, {}, dense).manifest, rounds)
    return [*parts, Copied("", encode(manifest))]


class Filling:
    """An empty shard, which is filled with the parts of a copy in their order."""

    def __init__(self, shard: Shard) -> None:
        shard.empty()
        self._shard = shard
        self._values: list[Chunk] = []

    def put(self, table: str, part: TablePart) -> None:
        if isinstance(part, Rows):
            self._shard.sparse[table].put(part)
        else:
            self._values.append(Chunk(False, table=table, part=part))

    def resume(self, table: str, copied: CopiedMetadata) -> None:
        self._shard.sparse[table].resume(*copied)

    def end(self, manifest: bytes) -> CopyManifest:
        """Take the ledgers and ranges: the shard is whole."""
        try:
            found = decode(manifest, type=CopyManifest)
        except (DecodeError, ValidationError) as error:
            raise Malformed(f"the manifest of a copy cannot be read: {error}") from None
        transfer = from_chunks([Chunk(False, manifest=encode(found.transfer)), *self._values])
        self._shard.load(transfer)
        return found


# --- digests ---------------------------------------------------------------------------------------------------------


def table_digest(shard: Shard, table: str) -> str:
    """Return a digest of all that decides what a table does next; equal in whatever order its rows are in memory."""
    found = xxh3_64()
    if table in shard.dense:
        dense = shard.dense[table]
        for values in (dense.values(), dense.state()):
            found.update(values.tobytes())
    else:
        rows = shard.sparse[table]
        found.update(encode([_rows_digest(rows.freeze().parts()), len(rows), rows.num_pushes]))
        for array in stack([rows.export_metadata()]).values():
            found.update(array.tobytes())
    for ledger in (piece.ledger for piece in shard.pieces_of(table)):
        entries = {worker: tables[table] for worker, tables in ledger.workers.items() if table in tables}
        known = ledger.num_pushes.get(table), ledger.num_rounds.get(table), sorted(entries.items())
        found.update(encode(known))
    return f"{found.intdigest():016x}"


def _rows_digest(parts: Iterator[Rows]) -> int:
    total = 0
    for rows in parts:
        words = np.empty((len(rows.keys), 4 + rows.values.shape[1] + rows.state.shape[1]), np.uint32)
        words[:, :2] = rows.keys.view(np.uint32).reshape(-1, 2)
        words[:, 2], words[:, 3] = rows.uses.view(np.uint32), rows.clock
        words[:, 4 : 4 + rows.values.shape[1]] = rows.values.view(np.uint32)
        words[:, 4 + rows.values.shape[1] :] = np.ascontiguousarray(rows.state).view(np.uint32)
        total = (total + int(_sum_of_hashes(words))) % 2**64
    return total


@kernel
def _sum_of_hashes(words: NDArray[np.uint32]) -> np.uint64:
    """Return the sum of the hashes of all rows, which does not depend on their order."""
    total = np.uint64(0)
    for i in range(words.shape[0]):
        found = np.uint64(words.shape[1])
        for j in range(words.shape[1]):
            found = mix64(found ^ np.uint64(words[i, j]))
        total += found
    return total
