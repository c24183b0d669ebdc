"""Sparse tables on their way into a snapshot and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from heterps.arrays import KeyArray
from heterps.checkpoint import TableRows, TableStream
from heterps.ps.client.interface import JobClient
from heterps.ps.protocol.row_files import RowFileInfo, RowFiles, VersionRange
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.finite import finite_parts
from heterps.ps.table.optimizers import state_words
from heterps.ps.table.rows import Rows


class TableChanges(NamedTuple):
    """What a version of the tables of a job has: all rows, or those that changed since another."""

    number: int  # of this version, from 1 on, by which tables know it
    since: int  # the version since which rows have changed; 0: all rows
    gone: Mapping[str, KeyArray]  # by table: keys that lost their row since then


def save_table(
    client: JobClient, spec: TableSpec, *, in_place: bool, changes: TableChanges | None = None
) -> TableRows | TableStream:
    """A table with everything that it needs to go on. NotFinite where a row is not finite: it is never saved.

    in_place  the rows stay where they are until a save of the snapshot begins, and are then written by those who hold
              them: a RuntimeError if the table has changed meanwhile. Always so with tiers: they may be larger than
              memory. Otherwise the snapshot has a copy.
    changes   in place: what to write, so that the next one can be the changes since; None: all rows
    """
    meta: dict[str, Any] = {"dim": spec.dim, "optimizer": spec.optimizer.model_dump()}
    meta["num_pushes"] = num_pushes = client.num_pushes(spec.name)
    metadata, num_rows = client.export_metadata(spec.name), client.num_rows(spec.name)
    if not in_place and spec.tiers is None:
        return _copy(client, spec.name, meta, metadata)

    def write(files: RowFiles, path: str) -> Callable[[], list[RowFileInfo]]:
        if client.num_pushes(spec.name) != num_pushes:
            raise RuntimeError(f"table {spec.name} changed between its snapshot and the save of it")
        version = None if changes is None else VersionRange(changes.number, changes.since, "checkpoints")
        return client.begin_save(spec.name, files, path, version)

    widths = spec.dim, state_words(spec.optimizer, spec.dim)
    read = partial(_read, client, spec.name)
    gone = None
    if changes is not None and changes.since:
        meta["num_rows"], gone = num_rows, changes.gone[spec.name]
    return TableStream(num_rows, widths, read, meta, metadata, write=write, gone=gone)


def _copy(client: JobClient, table: str, meta: Any = None, metadata: Any = None) -> TableRows:
    rows, _ = client.export_rows(table)
    (rows,) = finite_parts(table, [rows])
    return TableRows(rows.keys, rows.values, rows.state, meta or {}, rows.uses, rows.clock, metadata or {})


def _read(client: JobClient, table: str) -> Iterator[TableRows]:
    yield _copy(client, table)


def changed_table(client: JobClient, spec: TableSpec, changes: TableChanges) -> TableStream:
    """What changed in a table, for those who follow a run: without optimizer state."""

    def write(files: RowFiles, path: str) -> Callable[[], list[RowFileInfo]]:
        return client.begin_save(spec.name, files, path, VersionRange(changes.number, changes.since, "followers"))

    gone = changes.gone.get(spec.name, ())
    metadata = {"gone": np.asarray(gone)} if len(gone) else {}
    read = partial(_read, client, spec.name)
    return TableStream(client.num_rows(spec.name), (spec.dim, 0), read, {"dim": spec.dim}, metadata, write=write)


def load_table(client: JobClient, spec: TableSpec, table: TableRows | TableStream) -> None:
    """Fill an empty table. ValueError, and no change, where the saved one is of another kind."""
    if table.widths != (widths := (spec.dim, state_words(spec.optimizer, spec.dim))):
        raise ValueError(
            f"table {spec.name} has rows of {widths[0]} values and {widths[1]} words of state, the saved one of "
            f"{table.widths[0]} and {table.widths[1]}"
        )
    num_pushes = table.meta["num_pushes"]
    if isinstance(table, TableStream) and table.files is not None:
        client.load_rows(spec.name, *table.files, num_pushes, table.metadata)
        if (found := client.num_rows(spec.name)) != len(table):
            raise ValueError(f"table {spec.name} was saved with {len(table):,} rows, its files give {found:,}")
        return
    rows = table.whole()
    arrays = Rows(rows.keys, rows.values, rows.state, rows.uses, rows.clock)
    client.import_rows(spec.name, arrays, num_pushes, table.metadata)
