"""Cargo: slots and dense ranges on their way from one server to another, with the ledgers that say what is in them.

    parcel 0        the label: which slots and ranges, the ledger of each, the lives of the workers
    parcel 1, 2...  rows, a table after another, then ranges, in parts of bounded size

Parcels are numbered, so that whoever carries them may drop one and ask for it again, or bring one twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from msgspec import DecodeError, Struct, ValidationError
from msgspec.msgpack import decode, encode
from numpy.typing import NDArray

from heterps.ps.server.dense_range import DensePart
from heterps.ps.server.ledger import Ledger
from heterps.ps.protocol.placement import NUM_SLOTS, slots_of
from heterps.ps.table.sparse import Rows
from heterps.wire import Malformed

FloatArray = NDArray[np.float32]
PART_BYTES = 16 * 2**20
"""About as much of a table travels in one message: far less than a message may have, far more than its overhead."""


class PieceLabel(Struct):
    """Slots that have taken the same pushes, and which those are."""

    slots: list[int]
    ledger: Ledger


class RangeLabel(Struct):
    """Values of a dense table that have taken the same pushes, and which those are."""

    table: str
    first: int
    size: int
    is_filled: bool
    ledger: Ledger


class Label(Struct):
    pieces: list[PieceLabel]
    workers: dict[str, int]  # the newest life of each that the source has met
    ranges: list[RangeLabel] = []


class Cargo(Struct):
    label: Label
    rows: dict[str, Rows]  # by sparse table
    dense: dict[str, list[DensePart]] = {}  # by dense table, as the label's ranges say


class ValuePart(NamedTuple):
    """A part of a range: values first..first+n-1 and their state [words a value, n]."""

    first: int
    values: FloatArray
    state: FloatArray


class Parcel(Struct):
    """A part of a cargo. The first has the label and nothing else."""

    last: bool
    label: bytes = b""
    table: str = ""
    part: Rows | ValuePart | None = None


def to_parcels(cargo: Cargo) -> list[Parcel]:
    parcels = [Parcel(False, label=encode(cargo.label))]
    parcels += [Parcel(False, table=name, part=part) for name, rows in cargo.rows.items() for part in row_parts(rows)]
    for name, ranges in cargo.dense.items():
        for each in ranges:
            parcels += [
                Parcel(False, table=name, part=part) for part in value_parts(each.first, each.values, each.state)
            ]
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
    rows: dict[str, list[Rows]] = {}
    values: dict[str, list[ValuePart]] = {}
    for parcel in parcels[1:]:
        if isinstance(parcel.part, Rows):
            rows.setdefault(parcel.table, []).append(parcel.part)
        elif parcel.part is not None:
            values.setdefault(parcel.table, []).append(parcel.part)
    dense: dict[str, list[DensePart]] = {}
    for each in label.ranges:
        dense.setdefault(each.table, []).append(_range(each, values.get(each.table, [])))
    return Cargo(label, {table: concatenate(parts) for table, parts in rows.items()}, dense)


def _range(label: RangeLabel, parts: list[ValuePart]) -> DensePart:
    """A range of what came for its table."""
    mine = [part for part in parts if label.first <= part.first < label.first + label.size]
    if [part.first for part in mine] != _firsts(label.first, mine) or sum(len(p.values) for p in mine) != label.size:
        raise Malformed(f"the parts of {label.size} values of table {label.table} do not follow each other")
    if len({len(part.state) for part in mine}) > 1:
        raise Malformed(f"the parts of table {label.table} have state of different sizes")
    values = np.concatenate([np.empty(0, np.float32), *(part.values for part in mine)])
    state = np.hstack([part.state for part in mine]) if mine else np.empty((0, 0), np.float32)
    return DensePart(label.first, values, state, label.is_filled, label.ledger)


def _firsts(first: int, parts: list[ValuePart]) -> list[int]:
    """Where parts begin that follow each other."""
    ends = np.cumsum([first, *(len(part.values) for part in parts)])
    return [int(end) for end in ends[:-1]]


def restrict(cargo: Cargo, slots: NDArray[np.bool_], ranges: Mapping[str, slice]) -> Cargo:
    """What of a cargo is in these slots and ranges: a checkpoint of any servers, for one of others."""
    kept = [PieceLabel([slot for slot in piece.slots if slots[slot]], piece.ledger) for piece in cargo.label.pieces]
    rows = {name: rows.select(slots[slots_of(rows.keys)]) for name, rows in cargo.rows.items()}
    cut = {name: [part.cut(ranges[name]) for part in parts] for name, parts in cargo.dense.items()}
    dense = {name: [part for part in parts if len(part.values)] for name, parts in cut.items()}
    return make_cargo([piece for piece in kept if piece.slots], cargo.label.workers, rows, dense)


def make_cargo(
    pieces: list[PieceLabel], workers: dict[str, int], rows: dict[str, Rows], dense: dict[str, list[DensePart]]
) -> Cargo:
    """A cargo with the label that its ranges ask for."""
    ranges = [
        RangeLabel(name, part.first, len(part.values), part.is_filled, part.ledger)
        for name, parts in dense.items()
        for part in parts
    ]
    return Cargo(Label(pieces, dict(workers), ranges), rows, dense)


def concatenate(parts: list[Rows]) -> Rows:
    return Rows(*(np.concatenate(field) for field in zip(*parts, strict=True)))


def row_parts(rows: Rows) -> Iterator[Rows]:
    """Rows in parts of about PART_BYTES. None for none."""
    row_bytes = sum(field[:1].nbytes for field in rows)
    step = max(1, PART_BYTES // max(1, row_bytes))
    for first in range(0, len(rows.keys), step):
        yield rows.select(slice(first, first + step))  # type: ignore[arg-type]


def value_parts(first: int, values: FloatArray, state: FloatArray) -> Iterator[ValuePart]:
    """Values from `first` on and their state, [words a value, n], in parts of about PART_BYTES. None for none."""
    step = max(1, PART_BYTES // (4 * (1 + len(state))))
    for at in range(0, len(values), step):
        yield ValuePart(first + at, values[at : at + step], state[:, at : at + step])
