"""Cargo: slots on their way from one server to another, with their rows and with the ledgers that say what is in them.

    parcel 0        the label: which slots, the ledger of each piece, the lives of the workers
    parcel 1, 2...  rows, a table after another, in parts that fit into a message

Parcels are numbered, so that whoever carries them may drop one and ask for it again, or bring one twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import decode, encode
from numpy.typing import NDArray

from heterps.ps.ledger import Ledger
from heterps.ps.placement import NUM_SLOTS, slots_of
from heterps.ps.table.sparse import Rows
from heterps.wire import Malformed

PARCEL_ROWS = 65_536


class PieceLabel(Struct):
    """Slots that have taken the same pushes, and which those are."""

    slots: list[int]
    ledger: Ledger


class Label(Struct):
    pieces: list[PieceLabel]
    workers: dict[str, int]  # the newest life of each that the source has met


class Cargo(Struct):
    label: Label
    rows: dict[str, Rows]  # by sparse table


class Parcel(Struct):
    """A part of a cargo. The first has the label and no rows."""

    last: bool
    label: bytes = b""
    table: str = ""
    rows: Rows | None = None


def to_parcels(cargo: Cargo) -> list[Parcel]:
    parts = [(table, part) for table, rows in cargo.rows.items() for part in _parts(rows)]
    parcels = [Parcel(False, table=table, rows=part) for table, part in parts]
    parcels.insert(0, Parcel(False, label=encode(cargo.label)))
    parcels[-1].last = True
    return parcels


def from_parcels(parcels: list[Parcel]) -> Cargo:
    """What `to_parcels` took apart; Malformed where it is not that."""
    try:
        label = decode(parcels[0].label, type=Label)
    except (DecodeError, ValidationError) as error:
        raise Malformed(f"the label of a cargo cannot be read: {error}") from None
    if any(not 0 <= slot < NUM_SLOTS for piece in label.pieces for slot in piece.slots):
        raise Malformed(f"the label of a cargo names a slot beyond the {NUM_SLOTS:,} there are")
    by_table: dict[str, list[Rows]] = {}
    for parcel in parcels[1:]:
        assert parcel.rows is not None
        by_table.setdefault(parcel.table, []).append(parcel.rows)
    return Cargo(label, {table: concatenate(parts) for table, parts in by_table.items()})


def restrict(cargo: Cargo, slots: NDArray[np.bool_]) -> Cargo:
    """What of a cargo is in these slots: a checkpoint of any servers, for one of others."""
    kept = [PieceLabel([slot for slot in piece.slots if slots[slot]], piece.ledger) for piece in cargo.label.pieces]
    label = Label([piece for piece in kept if piece.slots], cargo.label.workers)
    return Cargo(label, {name: rows.select(slots[slots_of(rows.keys)]) for name, rows in cargo.rows.items()})


def concatenate(parts: list[Rows]) -> Rows:
    return Rows(*(np.concatenate(field) for field in zip(*parts, strict=True)))


def _parts(rows: Rows) -> Iterator[Rows]:
    for first in range(0, len(rows.keys), PARCEL_ROWS):
        yield rows.select(slice(first, first + PARCEL_ROWS))  # type: ignore[arg-type]
