"""Shard: one server's part of every table, and the ledgers that say which pushes are in it.

    slots     [ 0  1  2  3  4 | 5  6  7 ]        a piece is a set of slots that have taken the same pushes
    pieces      piece 0         piece 1          piece 1 came from another server that was further on, or less far
    ledgers     a: 17, b: 16    a: 18, b: 16     push 18 of worker a now moves the rows of piece 0 only

Mostly there is one piece. After a move there are several, until the pushes under way have reached all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from heterps.ps.keys.placement import NUM_SLOTS, all_in, owners, slot_mask, slots_of
from heterps.ps.protocol.messages import Round
from heterps.ps.protocol.parts import ValuePart
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.row_files import RowFile, RowFiles
from heterps.ps.protocol.specs import Tables
from heterps.ps.server.dense_range import DensePart, DensePiece, DenseRange
from heterps.ps.server.exports import Exports, Page
from heterps.ps.server.ledger import Ledger, PushState, Source
from heterps.ps.server.rounds import Contribution, Stash, push_once
from heterps.ps.server.transfer import PieceManifest, ShardTransfer, make_transfer
from heterps.ps.table.finite import finite_parts
from heterps.ps.table.metadata import Upkeep
from heterps.ps.table.sparse import Rows

FloatArray = NDArray[np.float32]
KeyArray = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@dataclass
class Piece:
    slots: Mask  # [NUM_SLOTS]
    ledger: Ledger
    stash: Stash = field(default_factory=Stash)


class Shard:
    """The tables of server `number` of `roster`. Calls check nothing that `home_error` and the tables do not check."""

    def __init__(self, tables: Tables, roster: Roster, number: int) -> None:
        self.sparse = {spec.name: spec.make_shard() for spec in tables.sparse}
        self.dense = {spec.name: DenseRange(spec, roster.dense_range(spec.size, number)) for spec in tables.dense}
        self.pieces = [Piece(owners(roster.num_shards) == number, Ledger())]
        self.exports = Exports()
        self.row_files: RowFiles | None = None  # where this server saves its own rows; None: they travel instead
        self._saved: tuple[str, RowFile] | None = None  # the last file that it wrote, with its table

    # --- who has pushed what -----------------------------------------------------------------------------------------

    def applied(self, source: Source, table: str) -> int:
        """The last push of `source` that all of the table has taken; of nothing, every push."""
        ledgers = self._ledgers(table)
        return min((ledger.applied(source.worker, source.incarnation, table) for ledger in ledgers), default=2**62)

    def state(self, source: Source, table: str, sequence: int) -> PushState:
        """The state of a push in the piece that is least far; APPLIED where nothing of the table is here."""
        states = {ledger.state(source.worker, source.incarnation, table, sequence) for ledger in self._ledgers(table)}
        order = (PushState.EARLY, PushState.APPLYING, PushState.NEXT, PushState.APPLIED)
        return next((state for state in order if state in states), PushState.APPLIED)

    def _ledgers(self, table: str) -> Sequence[Ledger]:
        return [piece.ledger for piece in self._pieces(table)]

    def _pieces(self, table: str) -> Sequence[Piece | DensePiece]:
        return self.dense[table].pieces if table in self.dense else self.pieces

    # --- rounds ------------------------------------------------------------------------------------------------------

    @property
    def stashes(self) -> list[Stash]:
        """Of all pieces."""
        dense = [piece.stash for table in self.dense.values() for piece in table.pieces]
        return [*(piece.stash for piece in self.pieces), *dense]

    def round_error(self, source: Source, table: str, sequence: int, round: Round) -> str | None:
        """What is wrong with a contribution that is new to some piece."""
        push = source.worker, source.incarnation, table
        new_to = [piece for piece in self._pieces(table) if sequence > piece.ledger.applied(*push)]
        errors = (piece.stash.error(piece.ledger, table, round) for piece in new_to)
        return next((error for error in errors if error is not None), None)

    def is_awaited(self, table: str, round: Round, also: Iterable[int] = ()) -> bool:
        """Whether the next round of the table waits for this contribution before all others, in some piece."""
        return any(piece.stash.is_awaited(piece.ledger, table, round, also) for piece in self._pieces(table))

    # --- sparse tables -----------------------------------------------------------------------------------------------

    def home_error(self, keys: KeyArray) -> str | None:
        """What is wrong with keys whose home is not here."""
        held = self.pieces[0].slots if len(self.pieces) == 1 else self.slots
        if all_in(keys, held):
            return None
        astray = ~held[slots_of(keys)]
        return f"{astray.sum()} of {len(keys)} keys, {keys[astray.argmax()]} first, have their home on another server"

    def push_rows(
        self, source: Source, table: str, sequence: int, push: Contribution, round: Round | None = None
    ) -> None:
        """Apply a push, or keep it for its round, in every piece whose next one it is.

        An exception leaves it APPLYING in a piece: in doubt.
        """
        keys, grads, samples = push
        assert keys is not None
        slots = slots_of(keys) if len(self.pieces) > 1 else None
        for piece in self.pieces:
            ledger = piece.ledger
            if ledger.state(source.worker, source.incarnation, table, sequence) is not PushState.NEXT:
                continue
            mine = slice(None) if slots is None else np.flatnonzero(piece.slots[slots])
            part = Contribution(keys[mine], grads[mine], samples)
            push_once(ledger, piece.stash, source, table, part, round, partial(self._step, table, ledger))
        self._join_pieces()

    def _step(self, table: str, ledger: Ledger, push: Contribution) -> None:
        """One step of the optimizer for rows of the piece with this ledger."""
        assert push.keys is not None
        target = self.sparse[table]
        target.num_pushes = ledger.num_pushes.get(table, 0)  # pieces may have seen different numbers
        target.push_unique(push.keys, push.grads, samples=push.samples)

    def _join_pieces(self) -> None:
        """Make one of pieces that have come to the same pushes, and keep nothing."""
        if len(self.pieces) < 2:
            return
        joined: list[Piece] = []
        for piece in self.pieces:
            alike = (other for other in joined if other.ledger == piece.ledger and not other.stash)
            equal = None if piece.stash else next(alike, None)
            if equal is None:
                joined.append(piece)
            else:
                equal.slots = equal.slots | piece.slots
        self.pieces = joined

    def num_pushes(self, table: str) -> int:
        """That all rows of a sparse table have seen."""
        return min((piece.ledger.num_pushes.get(table, 0) for piece in self.pieces), default=0)

    # --- tables in and out -------------------------------------------------------------------------------------------

    def export(self, source: Source, table: str, number: int, part: int) -> Page:
        """A part of a table for `source`; with part 0 the table is copied."""
        if part:
            return self.exports.page(source.worker, table, number, part)
        whole: Rows | ValuePart
        if table in self.dense:
            dense = self.dense[table]
            whole, num_pushes = ValuePart(dense.within.start, dense.values(), dense.state()), dense.num_steps
        else:
            whole = self.sparse[table].export_rows()
            num_pushes = self.num_pushes(table)
        return self.exports.begin(source.worker, table, number, num_pushes, whole)

    def put(
        self, source: Source, table: str, sequence: int, part: Rows | ValuePart, num_pushes: int, *, is_first: bool
    ) -> None:
        """Take in a part of a table that has seen `num_pushes`, as a push. ValueError, and no change, if wrong."""
        if not isinstance(part, Rows):
            filled = DensePart(part.first, part.values, part.state, True, Ledger())
            self.dense[table].put(source, sequence, filled, num_pushes)
            return
        push, target = (source.worker, source.incarnation, table), self.sparse[table]
        homes = slots_of(part.keys)
        for piece in [piece for piece in self.pieces if piece.ledger.state(*push, sequence) is PushState.NEXT]:
            if is_first and len(target) and piece.slots[slots_of(target.export_rows().keys)].any():
                raise ValueError(f"rows are loaded into an empty table; this one has {len(target):,} rows")
            target.num_pushes, before = num_pushes, target.num_pushes
            try:
                target.put(part.select(piece.slots[homes]))
            except BaseException:
                target.num_pushes = before
                raise
            piece.ledger.begin(*push)
            piece.ledger.finish(source.worker, table, num_pushes)
        self._join_pieces()

    def save_rows(self, table: str, path: str) -> RowFile | None:
        """Write the rows of a table to a file; None where the server has no folder of that path.

        StorageError where the disk refuses, NotFinite where a row is not finite.
        """
        if self.row_files is None or not self.row_files.has_folder(path):
            return None
        if self._saved is not None and self._saved[0] == table and self._saved[1].path == path:
            return self._saved[1]  # its answer was lost, or came late
        rows = self.sparse[table]
        written = self.row_files.write(path, finite_parts(table, rows.row_parts()()), len(rows), rows.widths)
        self._saved = table, written
        return written

    def can_read(self, paths: Iterable[str]) -> bool:
        """Whether this server sees all these files of rows."""
        return self.row_files is not None and all(self.row_files.has(path) for path in paths)

    def load_rows(self, source: Source, table: str, sequence: int, paths: Iterable[str], num_pushes: int) -> None:
        """Take in the rows of these files whose home is here, part by part, as one push. The table must be empty."""
        assert self.row_files is not None
        push, target = (source.worker, source.incarnation, table), self.sparse[table]
        if len(target):
            raise ValueError(f"rows are loaded into an empty table; this one has {len(target):,} rows")
        pieces = [piece for piece in self.pieces if piece.ledger.state(*push, sequence) is PushState.NEXT]
        held = np.any([piece.slots for piece in pieces], axis=0)
        target.num_pushes = num_pushes
        for path in paths:
            for part in self.row_files.read(path):
                target.put(part.select(held[slots_of(part.keys)]))
        for piece in pieces:
            piece.ledger.begin(*push)
            piece.ledger.finish(source.worker, table, num_pushes)
        self._join_pieces()

    def resume(self, source: Source, table: str, sequence: int, num_pushes: int, upkeep: Upkeep) -> None:
        """Take over what the shard of a table knew besides its rows, as a push."""
        push = (source.worker, source.incarnation, table)
        self.sparse[table].resume(num_pushes, upkeep)
        for piece in [piece for piece in self.pieces if piece.ledger.state(*push, sequence) is PushState.NEXT]:
            piece.ledger.begin(*push)
            piece.ledger.finish(source.worker, table, num_pushes)
        self._join_pieces()

    # --- moves -------------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> Mask:
        """That are here."""
        return np.any([piece.slots for piece in self.pieces], axis=0) if self.pieces else np.zeros(NUM_SLOTS, np.bool_)

    @property
    def ranges(self) -> dict[str, slice]:
        """Of the dense tables, that are this server's."""
        return {name: dense.within for name, dense in self.dense.items()}

    def copy(self, slots: Mask, ranges: Mapping[str, slice], workers: dict[str, int]) -> ShardTransfer:
        """Slots and ranges with their ledgers, for a checkpoint or a move; `workers` are the lives to know of there."""
        manifests = [
            PieceManifest(np.flatnonzero(piece.slots & slots).tolist(), piece.ledger.copy())
            for piece in self.pieces
            if (piece.slots & slots).any()
        ]
        rows = {}
        if slots.any():
            rows = {name: table.export_rows() for name, table in self.sparse.items()}
            rows = {name: r.select(slots[slots_of(r.keys)]) for name, r in rows.items()}
        return make_transfer(
            manifests, workers, rows, {name: self.dense[name].copy(part) for name, part in ranges.items()}
        )

    def cut(self, slots: Mask, ranges: Mapping[str, slice], workers: dict[str, int]) -> ShardTransfer:
        """As `copy`, and they are no longer here."""
        transfer = self.copy(slots, ranges, workers)
        self.pieces = [
            Piece(piece.slots & ~slots, piece.ledger) for piece in self.pieces if (piece.slots & ~slots).any()
        ]
        for name, rows in transfer.rows.items():
            self.sparse[name].take(rows.keys)
        for name, part in ranges.items():
            self.dense[name].cut(part)
        return transfer

    def empty(self) -> None:
        """Let go of everything, to be filled by `load`."""
        self.cut(self.slots, self.ranges, {})

    def follow(self, roster: Roster, number: int) -> None:
        """From now on the ranges are those of server `number` of `roster`, of which nothing more has to leave."""
        for dense in self.dense.values():
            dense.within = roster.dense_range(dense.spec.size, number)
        self.exports.clear()

    def load(self, transfer: ShardTransfer) -> None:
        """Put in slots and ranges that are not here. ValueError, and no change, where they do not fit."""
        if unknown := (set(transfer.rows) - set(self.sparse)) | (set(transfer.dense) - set(self.dense)):
            raise ValueError(f"there are no tables {', '.join(sorted(unknown))} here")
        with ExitStack() as undo:
            for name, rows in transfer.rows.items():
                self.sparse[name].put(rows)
                undo.callback(self.sparse[name].take, rows.keys)
            for name, parts in transfer.dense.items():
                self.dense[name].load(parts)
                for part in parts:
                    undo.callback(self.dense[name].cut, slice(part.first, part.stop))
            undo.pop_all()
        self.pieces += [Piece(slot_mask(manifest.slots), manifest.ledger) for manifest in transfer.manifest.pieces]
        self._join_pieces()
