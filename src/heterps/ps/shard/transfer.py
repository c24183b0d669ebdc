"""ShardTransfer: slots and dense ranges on their way from one server to another, with the ledgers of what is in them.

    chunk 0         the manifest: which slots and ranges, the ledger of each, the incarnations of the workers
    chunk 1, 2...   rows, a table after another, then ranges, in parts of bounded size

Chunks are numbered, so that the process that carries them may drop one and ask for it again, or bring one twice.
"""

from __future__ import annotations

import numpy as np
from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import decode, encode

from heterps.ps.keys.placement import NUM_SLOTS
from heterps.ps.protocol.parts import TablePart, ValuePart, split
from heterps.ps.shard.dense_range import DensePart
from heterps.ps.shard.ledger import Ledger
from heterps.ps.table.rows import Rows
from heterps.wire import Malformed


class PieceManifest(Struct):
    """Slots that have taken the same pushes, and which those are."""

    slots: list[int]
    ledger: Ledger


class RangeManifest(Struct):
    """Values of a dense table that have taken the same pushes, and which those are."""

    table: str
    first: int
    size: int
    is_filled: bool
    ledger: Ledger


class TransferManifest(Struct):
    pieces: list[PieceManifest]
    workers: dict[str, int]  # the newest incarnation of each that the source has met
    ranges: list[RangeManifest] = []


class ShardTransfer(Struct):
    manifest: TransferManifest
    rows: dict[str, Rows]  # by sparse table
    dense: dict[str, list[DensePart]] = {}  # by dense table, as the manifest's ranges say


class Chunk(Struct):
    """A part of a transfer. The first has the manifest and nothing else."""

    last: bool
    manifest: bytes = b""
    table: str = ""
    part: TablePart | None = None


def make_transfer(
    pieces: list[PieceManifest], workers: dict[str, int], rows: dict[str, Rows], dense: dict[str, list[DensePart]]
) -> ShardTransfer:
    """Return a transfer with the manifest that its ranges ask for."""
    ranges = [
        RangeManifest(name, each.part.first, len(each.part.values), each.is_filled, each.ledger)
        for name, parts in dense.items()
        for each in parts
    ]
    return ShardTransfer(TransferManifest(pieces, dict(workers), ranges), rows, dense)


def to_chunks(transfer: ShardTransfer) -> list[Chunk]:
    chunks = [Chunk(False, manifest=encode(transfer.manifest))]
    chunks += [Chunk(False, table=name, part=part) for name, rows in transfer.rows.items() for part in split(rows)]
    ranges = [(name, each.part) for name, parts in transfer.dense.items() for each in parts]
    chunks += [Chunk(False, table=name, part=part) for name, whole in ranges for part in split(whole)]
    chunks[-1].last = True
    return chunks


def from_chunks(chunks: list[Chunk]) -> ShardTransfer:
    """Return what `to_chunks` took apart; Malformed where it is not that."""
    try:
        manifest = decode(chunks[0].manifest, type=TransferManifest)
    except (DecodeError, ValidationError) as error:
        raise Malformed(f"the manifest of a transfer cannot be read: {error}") from None
    if any(not 0 <= slot < NUM_SLOTS for piece in manifest.pieces for slot in piece.slots):
        raise Malformed(f"the manifest of a transfer names a slot beyond the {NUM_SLOTS:,} there are")
    rows: dict[str, list[Rows]] = {}
    values: dict[str, list[ValuePart]] = {}
    for chunk in chunks[1:]:
        if isinstance(chunk.part, Rows):
            rows.setdefault(chunk.table, []).append(chunk.part)
        elif chunk.part is not None:
            values.setdefault(chunk.table, []).append(chunk.part)
    dense: dict[str, list[DensePart]] = {}
    for each in manifest.ranges:
        dense.setdefault(each.table, []).append(_range(each, values.get(each.table, [])))
    return ShardTransfer(manifest, {table: Rows.join(parts) for table, parts in rows.items()}, dense)


def _range(manifest: RangeManifest, parts: list[ValuePart]) -> DensePart:
    """Put together a range of what came for its table."""
    stop = manifest.first + manifest.size
    mine = [part for part in parts if manifest.first <= part.first < stop]
    firsts, stops = [part.first for part in mine], [part.stop for part in mine]
    if [*firsts, stop] != [manifest.first, *stops]:
        raise Malformed(f"the parts of {manifest.size} values of table {manifest.table} do not follow each other")
    if len({len(part.state) for part in mine}) > 1:
        raise Malformed(f"the parts of table {manifest.table} have state of different sizes")
    values = np.concatenate([np.empty(0, np.float32), *(part.values for part in mine)])
    state = np.hstack([part.state for part in mine]) if mine else np.empty((0, 0), np.float32)
    return DensePart(ValuePart(manifest.first, values, state), manifest.is_filled, manifest.ledger)
