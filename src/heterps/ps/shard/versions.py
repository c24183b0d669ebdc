"""Versions of a shard of a sparse table, in files: for those who follow a run without optimizer state, for checkpoints
with it.

    version 1: all rows    version 2: rows that changed since 1, keys that went    version 3: since 2    ...

The table's ChangeLog knows what happened since the last one. Where it does not, all rows are written, and the keys that
went cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from heterps.arrays import KeyArray
from heterps.ps.protocol.row_files import RowFileInfo, RowFiles, VersionRange
from heterps.ps.table.changes import Reader
from heterps.ps.table.finite import finite_parts
from heterps.ps.table.frozen import RowsToSave
from heterps.ps.table.rows import Rows
from heterps.ps.table.sparse import SparseTable
from heterps.ps.table.tiers import TieredTable


def keys_gone(table: SparseTable | TieredTable, since: int, reader: Reader) -> KeyArray | None:
    """Return the keys whose rows went since a version, and did not come back; None where nobody can tell."""
    log = table.changes[reader]
    if not since or log.version != since:
        return None
    gone = log.gone
    return gone[~table.known(gone)]


def begin_rows(
    table: SparseTable | TieredTable, name: str, files: RowFiles, path: str, version: VersionRange | None, clock: int
) -> SaveOfRows:
    """Take the rows of table `name` as they are now; what is returned writes them, on any thread, while others change.

    version  only the rows that changed since the version before, or all where that is unknown; for followers without
             optimizer state. Every push and pull from now on notes a clock of at least `clock`
    """
    log = None if version is None else table.changes[version.reader]
    is_known = version is not None and log is not None and version.since and log.version == version.since
    rows = table.freeze(version.reader if version is not None and is_known else None)
    if version is not None:
        files = files_for(version.reader, files)

    def write() -> RowFileInfo:
        return files.write(path, finite_parts(name, rows.parts()), len(rows), table.widths)

    save = SaveOfRows(rows, write)
    if not rows.holds:
        written = write()
        save = SaveOfRows(rows, lambda: written)
    if log is not None and version is not None:
        log.begin(version.number, clock)
    return save


class SaveOfRows(NamedTuple):
    """Rows of a shard on their way into a file: `write` makes it, or has made it, and returns what it is.

    It raises StorageError where the disk refuses, and NotFinite where a value is not finite.
    """

    rows: RowsToSave
    write: Callable[[], RowFileInfo]


def replace_rows(table: SparseTable | TieredTable, rows: Rows) -> None:
    """Take in rows of a newer version than those in the table. Rows without values are of keys that went since."""
    known = table.known(rows.keys)
    if known.any():
        table.take(rows.keys[known])
    if rows.values.shape[1]:
        table.put(rows)


def files_for(reader: Reader, files: RowFiles) -> RowFiles:
    """Return files to which a reader's rows are written: followers need no optimizer state."""
    return WithoutState(files) if reader == "followers" else files


class WithoutState:
    """Files to which rows are written without their optimizer state."""

    def __init__(self, files: RowFiles) -> None:
        self._files = files
        self.has, self.has_folder, self.read = files.has, files.has_folder, files.read
        self.read_all, self.start = files.read_all, files.start

    def write(self, path: str, parts: Iterable[Rows], num_rows: int, widths: tuple[int, int]) -> RowFileInfo:
        stripped: Iterator[Rows] = (part.without_state() for part in parts)
        return self._files.write(path, stripped, num_rows, (widths[0], 0))
