"""SavedRows: the rows of a checkpoint, read from its files for a model that is used and not trained.

    keys of a batch --> IndexedRows --> values
                            |
                            +-- not there: the initial values of the table, a function of its seed and the key

Values stay in the files, so that tables may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.checkpoint.indexed_rows import IndexedRows
from heterps.ps.client.local import done
from heterps.ps.keys.dedup import Lookup
from heterps.ps.protocol.specs import TableSpec


class SavedTable:
    """The rows of one table in the files of a checkpoint."""

    def __init__(self, spec: TableSpec, rows: IndexedRows) -> None:
        self._rows = rows
        self._initial = spec.make_shard()
        self.dim = spec.dim

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def keys(self) -> KeyArray:
        """All keys that have a row, sorted."""
        return self._rows.keys

    def in_order(self, num_rows: int) -> Iterator[tuple[KeyArray, FloatArray]]:
        """Yield keys and values in the order of the keys, `num_rows` rows at a time."""
        for first in range(0, len(self), num_rows):
            keys = self.keys[first : first + num_rows]
            yield keys, self.pull(keys)[0]

    def pull(self, keys: KeyArray) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Return the values of keys [n, dim], initial values for those without a row, and which have one [n]."""
        out = self._initial.pull(keys, create=False)
        is_known, places = self._rows.find(keys)
        self._rows.values(places, out, np.flatnonzero(is_known))
        return out, is_known

    def close(self) -> None:
        self._rows.close()


class AskedKeys(NamedTuple):
    """How many keys were asked of a table, each as often as samples have it, and how many of these have no row."""

    num: int | None  # None: not counted
    num_unknown: int


class SavedRows:
    """A client, as embeddings need one, whose tables are in the files of a checkpoint."""

    num_shards = 1

    def __init__(self, tables: Mapping[str, SavedTable]) -> None:
        self.tables = dict(tables)
        self._asked = dict.fromkeys(tables, AskedKeys(0, 0))
        self._lock = Lock()

    @property
    def asked(self) -> dict[str, AskedKeys]:
        """How many keys were asked for so far, by table."""
        with self._lock:
            return dict(self._asked)

    def rows_here(self, table: str) -> int:
        return len(self.tables[table])

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        """Return rows of the lookup's unique keys; none is created, whatever is asked for."""
        del create
        values, is_known = self.tables[table].pull(lookup.unique)
        unknown = int(np.diff(lookup.starts)[~is_known].sum())
        with self._lock:
            before = self._asked[table]
            self._asked[table] = AskedKeys((before.num or 0) + len(lookup.inverse), before.num_unknown + unknown)
        return done(values)

    def push(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("the rows of a checkpoint are read only: resume the run to train it further")

    def close(self) -> None:
        for table in self.tables.values():
            table.close()
