"""Shard: one server's part of every table, and the ledgers that say which pushes are in it.

    slots     [ 0  1  2  3  4 | 5  6  7 ]        a piece is a set of slots that have taken the same pushes
    pieces      piece 0         piece 1          piece 1 came from another server that was further on, or less far
    ledgers     a: 17, b: 16    a: 18, b: 16     push 18 of worker a now moves the rows of piece 0 only

Mostly there is one piece. After a move there are several, until the pushes under way have reached all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from heterps.config import ConstantRate, Optimizer, Schedule
from heterps.ps.cargo import Cargo, Label, PieceLabel
from heterps.ps.client import TableSpec
from heterps.ps.dense import DenseTable
from heterps.ps.ledger import Ledger, PushState
from heterps.ps.placement import all_in, owners, slot_mask, slots_of
from heterps.ps.roster import Roster
from heterps.ps.table.sparse import Rows

FloatArray = NDArray[np.float32]
KeyArray = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class DenseSpec:
    """A dense table, as a worker asks for it and servers make their ranges of it."""

    name: str
    size: int
    optimizer: Optimizer
    schedule: Schedule = field(default_factory=ConstantRate)


@dataclass(frozen=True)
class Tables:
    """Everything that the servers of a job hold. Workers and servers must agree on it: see `digest`."""

    sparse: tuple[TableSpec, ...]
    dense: tuple[DenseSpec, ...] = ()

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.sparse] + [spec.name for spec in self.dense]
        if len(set(names)) < len(names):
            raise ValueError(f"every table needs a name of its own, got {sorted(names)}")

    @property
    def digest(self) -> str:
        """Equal for equal tables, whatever their order."""
        return xxh3_64_hexdigest("\n".join(sorted(repr(spec) for spec in (*self.sparse, *self.dense))).encode())


@dataclass(frozen=True)
class Source:
    """Who pushed: a worker in one of its lives."""

    worker: str
    incarnation: int


@dataclass
class Piece:
    slots: Mask  # [NUM_SLOTS]
    ledger: Ledger


class Shard:
    """The tables of server `number` of `roster`. Calls check nothing that `home_error` and the tables do not check."""

    def __init__(self, tables: Tables, roster: Roster, number: int) -> None:
        self.sparse = {spec.name: spec.make_shard() for spec in tables.sparse}
        self.dense: dict[str, DenseTable] = {}
        for spec in tables.dense:
            part = roster.dense_range(spec.size, number)
            self.dense[spec.name] = DenseTable(part.stop - part.start, spec.optimizer, spec.schedule)
        self.pieces = [Piece(owners(roster.num_shards) == number, Ledger())]
        self.dense_ledger = Ledger()
        self.filled: set[str] = set()  # dense tables that have their first values

    # --- who has pushed what -----------------------------------------------------------------------------------------

    def applied(self, source: Source, table: str) -> int:
        """The last push of `source` that all of the table has taken."""
        return min(ledger.applied(source.worker, source.incarnation, table) for ledger in self._ledgers(table))

    def state(self, source: Source, table: str, sequence: int) -> PushState:
        """The state of a push in the piece that is least far."""
        states = {ledger.state(source.worker, source.incarnation, table, sequence) for ledger in self._ledgers(table)}
        order = (PushState.EARLY, PushState.APPLYING, PushState.NEXT, PushState.APPLIED)
        return next(state for state in order if state in states)

    def _ledgers(self, table: str) -> Sequence[Ledger]:
        return [self.dense_ledger] if table in self.dense else [piece.ledger for piece in self.pieces]

    # --- sparse tables -----------------------------------------------------------------------------------------------

    def home_error(self, keys: KeyArray) -> str | None:
        """What is wrong with keys whose home is not here."""
        held = self.pieces[0].slots
        for piece in self.pieces[1:]:
            held = held | piece.slots
        if all_in(keys, held):
            return None
        astray = ~held[slots_of(keys)]
        return f"{astray.sum()} of {len(keys)} keys, {keys[astray.argmax()]} first, have their home on another server"

    def push_rows(
        self, source: Source, table: str, sequence: int, keys: KeyArray, grads: FloatArray, samples: int | None = None
    ) -> None:
        """Apply a push to every piece whose next one it is. An exception leaves it APPLYING in a piece: in doubt."""
        slots = slots_of(keys) if len(self.pieces) > 1 else None
        for piece in self.pieces:
            ledger = piece.ledger
            if ledger.state(source.worker, source.incarnation, table, sequence) is not PushState.NEXT:
                continue
            mine = slice(None) if slots is None else np.flatnonzero(piece.slots[slots])
            ledger.begin(source.worker, source.incarnation, table)
            target = self.sparse[table]
            target.num_pushes = ledger.num_pushes.get(table, 0)  # pieces may have seen different numbers
            target.push_unique(keys[mine], grads[mine], samples=samples)
            ledger.finish(source.worker, table)
        self._join_pieces()

    def export_rows(self, table: str) -> tuple[Rows, int]:
        """All rows, and how many pushes they have seen: the least of all pieces."""
        return self.sparse[table].export_rows(), min(p.ledger.num_pushes.get(table, 0) for p in self.pieces)

    def import_rows(self, source: Source, table: str, rows: Rows, num_pushes: int) -> None:
        """Fill an empty table, as a push of `source`. ValueError, and no change, where rows do not fit."""
        self.sparse[table].import_rows(rows, num_pushes)
        for piece in self.pieces:
            piece.ledger.begin(source.worker, source.incarnation, table)
            piece.ledger.finish(source.worker, table)
            piece.ledger.num_pushes[table] = num_pushes

    def _join_pieces(self) -> None:
        """Make one of pieces that have come to the same pushes."""
        if len(self.pieces) < 2:
            return
        joined: list[Piece] = []
        for piece in self.pieces:
            equal = next((other for other in joined if other.ledger == piece.ledger), None)
            if equal is None:
                joined.append(piece)
            else:
                equal.slots = equal.slots | piece.slots
        self.pieces = joined

    # --- moves -------------------------------------------------------------------------------------------------------

    def copy(self, slots: Mask, workers: dict[str, int]) -> Cargo:
        """Slots with their rows and ledgers, for a checkpoint or a move; `workers` are the lives to know of there."""
        labels = [
            PieceLabel(np.flatnonzero(piece.slots & slots).tolist(), piece.ledger.copy())
            for piece in self.pieces
            if (piece.slots & slots).any()
        ]
        rows = {name: table.export_rows() for name, table in self.sparse.items()}
        return Cargo(
            Label(labels, dict(workers)), {name: r.select(slots[slots_of(r.keys)]) for name, r in rows.items()}
        )

    def cut(self, slots: Mask, workers: dict[str, int]) -> Cargo:
        """As `copy`, and they are no longer here."""
        cargo = self.copy(slots, workers)
        self.pieces = [
            Piece(piece.slots & ~slots, piece.ledger) for piece in self.pieces if (piece.slots & ~slots).any()
        ]
        for name, rows in cargo.rows.items():
            self.sparse[name].take(rows.keys)
        return cargo

    def load(self, cargo: Cargo) -> None:
        """Put in slots from elsewhere, none of which is here. ValueError, and no change, where rows do not fit."""
        if unknown := set(cargo.rows) - set(self.sparse):
            raise ValueError(f"there are no tables {', '.join(sorted(unknown))} here")
        done: list[str] = []
        try:
            for name, rows in cargo.rows.items():
                self.sparse[name].put(rows)
                done.append(name)
        except (ValueError, MemoryError):
            for name in done:
                self.sparse[name].take(cargo.rows[name].keys)
            raise
        self.pieces += [Piece(slot_mask(label.slots), label.ledger) for label in cargo.label.pieces]
        self._join_pieces()

    # --- dense tables ------------------------------------------------------------------------------------------------

    def fill_dense(self, table: str, values: FloatArray) -> None:
        """Give a table its first values; where it has some, nothing happens."""
        if table not in self.filled:
            self.dense[table].values[:] = values
            self.filled.add(table)

    def push_dense(self, source: Source, table: str, grads: FloatArray, samples: int | None = None) -> None:
        self.dense_ledger.begin(source.worker, source.incarnation, table)
        self.dense[table].push(grads, samples=samples)
        self.dense_ledger.finish(source.worker, table)
