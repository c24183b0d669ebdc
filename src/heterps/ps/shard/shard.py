"""Shard: one server's part of every table: slots of the sparse ones and a range of each dense one, in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import PurePosixPath
from typing import Self

import numpy as np

from heterps.arrays import KeyArray, Mask
from heterps.ps.keys.placement import NUM_SLOTS, all_in, owners, slot_mask, slots_of
from heterps.ps.protocol.messages import Iteration, Round
from heterps.ps.protocol.parts import TablePart, ValuePart
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.row_files import RowFileInfo, RowFiles, VersionRange
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.shard.dense_range import DensePiece, DenseRange
from heterps.ps.shard.exports import Exports, Page
from heterps.ps.shard.ledger import Ledger, PushSource
from heterps.ps.shard.pieces import Piece, PieceSet
from heterps.ps.shard.rounds import Contribution, Stash
from heterps.ps.shard.transfer import PieceManifest, ShardTransfer, make_transfer
from heterps.ps.shard.versions import SaveOfRows, begin_rows, replace_rows
from heterps.ps.table.metadata import TableMetadata
from heterps.ps.table.rows import Rows


class SlotPiece(Piece):
    """A mask of slots of all sparse tables, [NUM_SLOTS], that have taken the same pushes."""

    def __init__(self, slots: Mask, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.slots = slots

    def absorb(self, other: Self) -> bool:
        self.slots = self.slots | other.slots
        return True


class Shard:
    """The tables of server `number` of `roster`. Calls check nothing that `home_error` and the tables do not check."""

    def __init__(self, tables: TableSpecs, roster: Roster, number: int) -> None:
        self.sparse = {spec.name: spec.make_shard() for spec in tables.sparse}
        self.dense = {spec.name: DenseRange(spec, roster.dense_range(spec.size, number)) for spec in tables.dense}
        self.pieces = PieceSet([SlotPiece(owners(roster.num_shards) == number, Ledger())])
        self.exports = Exports()
        self.row_files: RowFiles | None = None  # where this server saves its own rows; None: they travel instead
        self._saves: dict[tuple[str, str], tuple[SaveOfRows, Future[RowFileInfo]]] = {}  # by table and path

    def pieces_of(self, table: str) -> PieceSet[SlotPiece] | PieceSet[DensePiece]:
        """Return the pieces of a table, which know its pushes."""
        return self.dense[table].pieces if table in self.dense else self.pieces

    @property
    def num_bytes(self) -> int:
        """Memory of all tables: rows or values with their optimizer state, and the index of rows."""
        return sum(t.num_bytes for t in self.sparse.values()) + sum(t.num_bytes for t in self.dense.values())

    @property
    def stashes(self) -> list[Stash]:
        """The contributions to rounds that all pieces keep."""
        dense = [piece.stash for table in self.dense.values() for piece in table.pieces]
        return [*(piece.stash for piece in self.pieces), *dense]

    # --- sparse tables -----------------------------------------------------------------------------------------------

    def home_error(self, keys: KeyArray) -> str | None:
        """Return what is wrong with keys whose home is not here."""
        held = self.slots
        if all_in(keys, held):
            return None
        astray = ~held[slots_of(keys)]
        return f"{astray.sum()} of {len(keys)} keys, {keys[astray.argmax()]} first, have their home on another server"

    def push_rows(
        self, source: PushSource, table: str, sequence: int, push: Contribution, round: Round | Iteration | None = None
    ) -> None:
        """Apply a push, or keep it for its round, in every piece whose next one it is; see PieceSet.push."""
        keys, grads, samples = push
        assert keys is not None
        slots = slots_of(keys) if len(self.pieces) > 1 else None

        def part_of(piece: SlotPiece) -> Contribution:
            mine = slice(None) if slots is None else np.flatnonzero(piece.slots[slots])
            return Contribution(keys[mine], grads[mine], samples)

        self.pieces.push(source, table, sequence, round, part_of, partial(self._step, table))

    def round_squares(self, table: str, number: int) -> float:
        """Return the sum of squares of a round of any table that waits."""
        return self.pieces_of(table).round_squares(table, number)

    def apply_round(self, source: PushSource, table: str, sequence: int, number: int, factor: float) -> None:
        """Make the step of a round of any table that waits, as a push; see PieceSet.apply_round."""
        if table in self.dense:
            self.dense[table].apply_round(source, sequence, number, factor)
        else:
            self.pieces.apply_round(source, table, sequence, number, factor, partial(self._step, table))

    def end_rounds(self, rounds: int) -> None:
        """Make the steps of all whole rounds up to number `rounds`, of all tables."""
        self.pieces.end_rounds(rounds, self._step)
        for dense in self.dense.values():
            dense.end_rounds(rounds)

    def sum_ahead(self) -> None:
        """Sum rounds whose parts have all come: nobody waits for that before it is told that they are over."""
        for stash in self.stashes:
            stash.sum_ahead()

    def drop_rounds(self, source: PushSource, table: str, sequence: int) -> None:
        """Drop the contributions to rounds of any table that wait, as a push; see PieceSet.drop_rounds."""
        self.pieces_of(table).drop_rounds(source, table, sequence)

    def _step(self, table: str, piece: SlotPiece, push: Contribution) -> None:
        """Make one step of the optimizer for rows of a piece."""
        assert push.keys is not None
        target = self.sparse[table]
        target.num_pushes = piece.ledger.num_pushes.get(table, 0)  # pieces may have seen different numbers
        target.push_unique(push.keys, push.grads, samples=push.samples)

    def resume(self, source: PushSource, table: str, sequence: int, num_pushes: int, metadata: TableMetadata) -> None:
        """Take over what the shard of a table knew besides its rows, as a push."""
        self.sparse[table].resume(num_pushes, metadata)
        self.pieces.take_over(source, table, sequence, num_pushes)

    # --- tables in and out -------------------------------------------------------------------------------------------

    def export(self, source: PushSource, table: str, number: int, part: int) -> Page:
        """Return a part of a table for `source`; with part 0 the table is copied."""
        if part:
            return self.exports.page(source.worker, table, number, part)
        whole: TablePart
        if table in self.dense:
            dense = self.dense[table]
            whole = ValuePart(dense.within.start, dense.values(), dense.state())
        else:
            whole = self.sparse[table].export_rows()
        return self.exports.begin(source.worker, table, number, self.pieces_of(table).num_pushes(table), whole)

    def put(
        self, source: PushSource, table: str, sequence: int, part: TablePart, num_pushes: int, *, is_first: bool
    ) -> None:
        """Take in a part of a table that has seen `num_pushes`, as a push. ValueError, and no change, if wrong."""
        if not isinstance(part, Rows):
            self.dense[table].put(source, sequence, part, num_pushes)
            return
        target, homes = self.sparse[table], slots_of(part.keys)

        def put(piece: SlotPiece) -> None:
            if is_first and len(target) and piece.slots[slots_of(target.export_rows().keys)].any():
                raise ValueError(f"rows are loaded into an empty table; this one has {len(target):,} rows")
            target.num_pushes, before = num_pushes, target.num_pushes
            try:
                target.put(part.select(piece.slots[homes]))
            except BaseException:
                target.num_pushes = before
                raise

        self.pieces.take_over(source, table, sequence, num_pushes, put)

    def begin_save(self, table: str, path: str, version: VersionRange | None) -> bool:
        """Begin to write the rows of a table, as they are now, to a file; see `begin_rows`.

        False where the server has no folder of that path. A save that was begun already is not begun again.
        """
        if self.row_files is None or not self.row_files.has_folder(path):
            return False
        if (table, path) not in self._saves:
            clock = min(self.sparse[table].num_pushes, self.pieces.num_pushes(table))  # pieces may differ in them
            save = begin_rows(self.sparse[table], table, self.row_files, path, version, clock)
            self._saves = {
                key: kept for key, kept in self._saves.items() if _together(key[1], path) or not kept[1].done()
            }
            self._saves[table, path] = save, self.row_files.start(save.write)
        return True

    def saved_rows(self, table: str, path: str) -> RowFileInfo | int | None:
        """Return the file of a save, or the number of rows that are left to write; None for a save that is unknown.

        StorageError where the disk refused, NotFinite where a row is not finite.
        """
        if (found := self._saves.get((table, path))) is None:
            return None
        save, written = found
        return written.result() if written.done() else save.rows.num_left

    def can_read(self, paths: Iterable[str]) -> bool:
        """Whether this server sees all these files of rows."""
        return self.row_files is not None and all(self.row_files.has(path) for path in paths)

    def load_rows(self, source: PushSource, table: str, sequence: int, paths: Iterable[str], num_pushes: int) -> None:
        """Take in the rows of these files whose home is here, part by part, as one push; see `replace_rows`.

        The table must be empty.
        """
        assert self.row_files is not None
        target = self.sparse[table]
        if len(target):
            raise ValueError(f"rows are loaded into an empty table; this one has {len(target):,} rows")
        held = _slots_in(self.pieces.awaiting(source, table, sequence))
        target.num_pushes = num_pushes
        for path in paths:
            for part in self.row_files.read(path):
                replace_rows(target, part.select(held[slots_of(part.keys)]))
        self.pieces.take_over(source, table, sequence, num_pushes)

    # --- moves -------------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> Mask:
        """The slots that are here."""
        return _slots_in(self.pieces)

    @property
    def ranges(self) -> dict[str, slice]:
        """The ranges of the dense tables that are this server's."""
        return {name: dense.within for name, dense in self.dense.items()}

    def copy(self, slots: Mask, ranges: Mapping[str, slice], workers: dict[str, int]) -> ShardTransfer:
        """Return copies of slots and ranges with their ledgers; `workers` are the incarnations to know of there."""
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
        """Return slots and ranges with their ledgers, which are no longer here then."""
        transfer = self.copy(slots, ranges, workers)
        self._forget_changes()
        rest = [SlotPiece(piece.slots & ~slots, piece.ledger) for piece in self.pieces]
        self.pieces = PieceSet(piece for piece in rest if piece.slots.any())
        for name, rows in transfer.rows.items():
            self.sparse[name].take(rows.keys)
        for name, part in ranges.items():
            self.dense[name].cut(part)
        return transfer

    def empty(self) -> None:
        """Drop everything, so that `load` can fill the shard."""
        self.cut(self.slots, self.ranges, {})

    def follow(self, roster: Roster, number: int) -> None:
        """Have the ranges of server `number` of `roster` from now on; nothing more has to leave."""
        for dense in self.dense.values():
            dense.within = roster.dense_range(dense.spec.size, number)
        self.exports.clear()

    def load(self, transfer: ShardTransfer) -> None:
        """Put in slots and ranges that are not here. ValueError, and no change, where they do not fit."""
        if unknown := (set(transfer.rows) - set(self.sparse)) | (set(transfer.dense) - set(self.dense)):
            raise ValueError(f"there are no tables {', '.join(sorted(unknown))} here")
        self._forget_changes()
        with ExitStack() as undo:
            for name, rows in transfer.rows.items():
                self.sparse[name].put(rows)
                undo.callback(self.sparse[name].take, rows.keys)
            for name, parts in transfer.dense.items():
                self.dense[name].load(parts)
                for each in parts:
                    undo.callback(self.dense[name].cut, slice(each.part.first, each.part.stop))
            undo.pop_all()
        new = [SlotPiece(slot_mask(manifest.slots), manifest.ledger) for manifest in transfer.manifest.pieces]
        self.pieces.replace([*self.pieces, *new])

    def _forget_changes(self) -> None:
        """Let the next version have all rows, because rows come or go by a move."""
        for table in self.sparse.values():
            table.changes.forget()


def _slots_in(pieces: Iterable[SlotPiece]) -> Mask:
    masks = [piece.slots for piece in pieces]
    if len(masks) == 1:
        return masks[0]
    return np.any(masks, axis=0) if masks else np.zeros(NUM_SLOTS, np.bool_)


def _together(path: str, other: str) -> bool:
    """Whether two files are of the same checkpoint or version."""
    return PurePosixPath(path).parent == PurePosixPath(other).parent
