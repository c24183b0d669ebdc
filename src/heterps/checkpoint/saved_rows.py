"""SavedRows: the rows of a checkpoint, read from its files for a model that is used and not trained.

    keys of a batch --search--> sorted keys in memory --> places in the files --memory map--> values
                        |
                        +-- not there: the initial values of the table, a function of its seed and the key

Sixteen bytes a row are in memory; values stay in the files, so that tables may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.checkpoint.rows import read_views
from heterps.ps.client.local import done
from heterps.ps.keys.dedup import Lookup
from heterps.ps.protocol.specs import TableSpec

FloatArray = NDArray[np.float32]
KeyArray = NDArray[np.uint64]


class SavedTable:
    """The rows of one table in the files of a checkpoint."""

    def __init__(self, spec: TableSpec, paths: Iterable[Path]) -> None:
        self._maps: list[Any] = [pa.memory_map(str(path)) for path in paths]
        parts = [part for source in self._maps for part in read_views(source)]
        self._values = [values for _, values in parts]
        keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _ in parts)])
        self._ends = np.cumsum([len(keys) for keys, _ in parts], dtype=np.int64)
        self._places = np.argsort(keys, kind="stable")
        self._keys = keys[self._places]
        self._initial = spec.make_shard()
        self.num_unknown = 0  # keys that were asked for and have no row, counted once a batch

    def __len__(self) -> int:
        return len(self._keys)

    def pull(self, keys: KeyArray) -> FloatArray:
        """Return the values of keys [n, dim]; initial values for those without a row."""
        out = self._initial.pull(keys, create=False)
        if not len(self._keys):
            self.num_unknown += len(keys)
            return out
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = np.flatnonzero(self._keys[at] == keys)
        self.num_unknown += len(keys) - len(known)
        places = self._places[at[known]]
        files = np.searchsorted(self._ends, places, side="right")
        for part in np.unique(files).tolist():
            mine = np.flatnonzero(files == part)
            first = int(self._ends[part - 1]) if part else 0
            out[known[mine]] = self._values[part][places[mine] - first]
        return out

    def close(self) -> None:
        self._values.clear()
        for source in self._maps:
            source.close()


class SavedRows:
    """A client, as embeddings need one, whose tables are in the files of a checkpoint."""

    num_shards = 1

    def __init__(self, tables: Mapping[str, SavedTable]) -> None:
        self.tables = dict(tables)

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        """Return rows of the lookup's unique keys; none is created, whatever is asked for."""
        del create
        return done(self.tables[table].pull(lookup.unique))

    def push(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("the rows of a checkpoint are read only: resume the run to train it further")

    def close(self) -> None:
        for table in self.tables.values():
            table.close()
