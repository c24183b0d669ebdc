"""IndexedRows: the rows of a saved table by key. Sixteen bytes a row are in memory; rows stay in the files.

keys of a caller --search--> sorted keys in memory --> places in the files --memory map--> rows
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.checkpoint.rows import read_views
from heterps.ps.table.rows import PART_ROWS, Rows

Places = NDArray[np.int64]


class IndexedRows:
    """The rows in the files `paths`: of each key the last one. Rows without values are of keys that went by then."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._maps: list[Any] = [pa.memory_map(str(path)) for path in paths]
        self._parts = [part for source in self._maps for part in read_views(source)]
        keys = np.concatenate([np.empty(0, np.uint64), *(part.keys for part in self._parts)])
        sizes = np.array([len(part.keys) for part in self._parts], np.int64)
        self._ends = np.cumsum(sizes)
        places = np.argsort(keys, kind="stable")
        is_last = np.append(np.diff(keys[places]) != 0, True)[: len(keys)]
        has_row = np.repeat(np.array([part.values.shape[1] > 0 for part in self._parts], np.bool_), sizes)
        self._places = places[is_last & has_row[places]]
        self.keys: KeyArray = keys[self._places]  # sorted

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: KeyArray) -> tuple[NDArray[np.bool_], Places]:
        """Return which of `keys` have a row [n], and where the rows of these are [m]."""
        if not len(self):
            return np.zeros(len(keys), np.bool_), np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        is_known = self.keys[at] == keys
        return is_known, self._places[at[is_known]]

    def values(self, places: Places, out: FloatArray, at: NDArray[np.int64]) -> None:
        """Copy the values of the rows at `places` to the rows `at` of `out`."""
        for part, mine, within in self._by_part(places):
            out[at[mine]] = part.values[within]

    def rows(self, places: Places) -> Rows:
        """Return copies of the rows at `places`, one or more, in that order."""
        found = [(mine, part.select(within)) for part, mine, within in self._by_part(places)]
        order = np.argsort(np.concatenate([mine for mine, _ in found]))
        return Rows.join([rows for _, rows in found]).select(order)

    def in_order(self) -> Iterator[Rows]:
        """Yield all rows in the order of their keys, PART_ROWS at a time."""
        for first in range(0, len(self), PART_ROWS):
            yield self.rows(self._places[first : first + PART_ROWS])

    def close(self) -> None:
        self._parts.clear()
        for source in self._maps:
            source.close()

    def _by_part(self, places: Places) -> Iterator[tuple[Rows, NDArray[np.int64], Places]]:
        """Yield the parts of files that have rows at `places`: which of `places` these are, and where in the part."""
        numbers = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            first = int(self._ends[number - 1]) if number else 0
            yield self._parts[number], mine, places[mine] - first
