"""Sparse tables on their way into a snapshot and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heterps.checkpoint import TableRows, TableStream
from heterps.errors import NotFinite
from heterps.ps.client.local import JobClient
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.finite import first_not_finite
from heterps.ps.table.optimizers import state_words
from heterps.ps.table.sparse import Rows


def save_table(client: JobClient, spec: TableSpec) -> TableRows | TableStream:
    """A table with everything that it needs to go on.

    One in memory is copied. One with tiers may be larger than memory: its rows are read when the snapshot is saved,
    and a step before that makes the save fail. NotFinite where a row is not finite: such a table is never saved.
    """
    meta: dict[str, Any] = {"dim": spec.dim, "optimizer": spec.optimizer.model_dump()}
    meta["num_pushes"] = client.num_pushes(spec.name)
    upkeep = client.export_upkeep(spec.name)
    if spec.tiers is None:
        rows, _ = client.export_rows(spec.name)
        return _as_table_rows(_finite(rows, spec.name), meta, upkeep)
    parts = client.row_parts(spec.name)

    def read() -> Iterator[TableRows]:
        return (_as_table_rows(_finite(rows, spec.name)) for rows in parts())

    widths = spec.dim, state_words(spec.optimizer, spec.dim)
    return TableStream(client.num_rows(spec.name), widths, read, meta, upkeep)


def load_table(client: JobClient, name: str, table: TableRows | TableStream) -> None:
    """Fill the empty table `name`. ValueError, and no change, where it is of another kind."""
    rows = table.whole()
    arrays = Rows(rows.keys, rows.values, rows.state, rows.uses, rows.clock)
    client.import_rows(name, arrays, table.meta["num_pushes"], table.upkeep)


def _finite(rows: Rows, table: str) -> Rows:
    """The rows themselves; NotFinite where a value or a word of optimizer state would spoil a checkpoint."""
    for name, words in (("value", rows.values), ("optimizer state", rows.state)):
        if (at := first_not_finite(words)) >= 0:
            raise NotFinite(
                f"table {table}: the row of key {rows.keys[at // words.shape[1]]} has the {name} {words.flat[at]}. "
                "It is not saved; the checkpoint before stays the newest. Lower the learning rate, and resume from it."
            )
    return rows


def _as_table_rows(rows: Rows, meta: Any = None, upkeep: Any = None) -> TableRows:
    return TableRows(rows.keys, rows.values, rows.state, meta or {}, rows.uses, rows.clock, upkeep or {})
