"""ShardTransfer: slots and dense ranges on their way from one server to another, with the ledgers of what is in them.

    chunk 0         the manifest: which slots and ranges, the ledger of each, the lives of the workers
    chunk 1, 2...   rows, a table after another, then ranges, in parts of bounded size

Chunks are numbered, so that whoever carries them may drop one and ask for it again, or bring one twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import decode, encode
from numpy.typing import NDArray

from heterps.ps.keys.placement import NUM_SLOTS, slots_of
from heterps.ps.protocol.parts import ValuePart, concatenate, row_parts, value_parts
from heterps.ps.server.dense_range import DensePart
from heterps.ps.server.ledger import Ledger
from heterps.ps.table.sparse import Rows
from heterps.wire import Malformed

FloatArray = NDArray[np.float32]


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
    workers: dict[str, int]  # the newest life of each that the source has met
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
    part: Rows | ValuePart | None = None


def to_chunks(transfer: ShardTransfer) -> list[Chunk]:
    chunks = [Chunk(False, manifest=encode(transfer.manifest))]
    chunks += [Chunk(False, table=name, part=part) for name, rows in transfer.rows.items() for part in row_parts(rows)]
    for name, ranges in transfer.dense.items():
        for each in ranges:
            chunks += [Chunk(False, table=name, part=part) for part in value_parts(each.first, each.values, each.state)]
    chunks[-1].last = True
    return chunks


def from_chunks(chunks: list[Chunk]) -> ShardTransfer:
    """What `to_chunks` took apart; Malformed where it is not that."""
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
    return ShardTransfer(manifest, {table: concatenate(parts) for table, parts in rows.items()}, dense)


def _range(manifest: RangeManifest, parts: list[ValuePart]) -> DensePart:
    """A range of what came for its table."""
    mine = [part for part in parts if manifest.first <= part.first < manifest.first + manifest.size]
    num_values = sum(len(part.values) for part in mine)
    if [part.first for part in mine] != _firsts(manifest.first, mine) or num_values != manifest.size:
        raise Malformed(f"the parts of {manifest.size} values of table {manifest.table} do not follow each other")
    if len({len(part.state) for part in mine}) > 1:
        raise Malformed(f"the parts of table {manifest.table} have state of different sizes")
    values = np.concatenate([np.empty(0, np.float32), *(part.values for part in mine)])
    state = np.hstack([part.state for part in mine]) if mine else np.empty((0, 0), np.float32)
    return DensePart(manifest.first, values, state, manifest.is_filled, manifest.ledger)


def _firsts(first: int, parts: list[ValuePart]) -> list[int]:
    """Where parts begin that follow each other."""
    ends = np.cumsum([first, *(len(part.values) for part in parts)])
    return [int(end) for end in ends[:-1]]


def restrict(transfer: ShardTransfer, slots: NDArray[np.bool_], ranges: Mapping[str, slice]) -> ShardTransfer:
    """What of a transfer is in these slots and ranges: a checkpoint of any servers, for one of others."""
    kept = [
        PieceManifest([slot for slot in piece.slots if slots[slot]], piece.ledger) for piece in transfer.manifest.pieces
    ]
    rows = {name: rows.select(slots[slots_of(rows.keys)]) for name, rows in transfer.rows.items()}
    cut = {name: [part.cut(ranges[name]) for part in parts] for name, parts in transfer.dense.items()}
    dense = {name: [part for part in parts if len(part.values)] for name, parts in cut.items()}
    return make_transfer([piece for piece in kept if piece.slots], transfer.manifest.workers, rows, dense)


def make_transfer(
    pieces: list[PieceManifest], workers: dict[str, int], rows: dict[str, Rows], dense: dict[str, list[DensePart]]
) -> ShardTransfer:
    """A transfer with the manifest that its ranges ask for."""
    ranges = [
        RangeManifest(name, part.first, len(part.values), part.is_filled, part.ledger)
        for name, parts in dense.items()
        for part in parts
    ]
    return ShardTransfer(TransferManifest(pieces, dict(workers), ranges), rows, dense)
