"""ColdRows: a ColdStore, which knows words only, for the rows of a table.

on disk   [uses | clock | values | state]      with eviction, [uses | clock] is in memory as well
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import KeyArray
from heterps.ps.table.cold import ColdStore
from heterps.ps.table.hand import Headers
from heterps.ps.table.rows import Rows

PART_BYTES = 4 << 20  # of a copy from or to disk
_USES, _CLOCK, _HEADER_WORDS = 0, 1, 2


class ColdRows(ColdStore):
    """Rows with `dim` values and `num_state` words of state. To `keep_headers` costs 8 to 10 bytes a row of memory."""

    def __init__(
        self, dim: int, num_state: int, folder: str | Path, mapped_bytes: int, *, keep_headers: bool = False
    ) -> None:
        self._values = slice(_HEADER_WORDS, _HEADER_WORDS + dim)
        self._keeps_headers = keep_headers
        kept_words = _HEADER_WORDS if keep_headers else 0
        self.part_rows = max(PART_BYTES // (8 + 4 * (_HEADER_WORDS + dim + num_state)), 1)
        super().__init__(_HEADER_WORDS + dim + num_state, folder, mapped_bytes, kept_words)

    def known(self, keys: KeyArray) -> NDArray[np.bool_]:
        """Return which of `keys` have a row here, [n]."""
        return self.find(keys) >= 0

    def put_rows(self, rows: Rows) -> None:
        """Write rows whose keys have none here."""
        words = np.empty((len(rows.keys), self.num_words), np.uint32)
        numbers = words.view(np.float32)
        numbers[:, _USES], words[:, _CLOCK] = rows.uses, rows.clock
        numbers[:, self._values] = rows.values
        numbers[:, self._values.stop :] = rows.state
        self.put(rows.keys, words)

    def take_rows(self, keys: KeyArray) -> Rows:
        """Remove the rows of `keys`, which are all here, and return them."""
        return self._rows(keys, self.take(keys))

    def read_rows(self, keys: KeyArray) -> Rows:
        """Return copies of the rows of `keys`, which are all here; nothing moves."""
        words = np.empty((len(keys), self.num_words), np.uint32)
        self.read(self.find(keys), words)
        return self._rows(keys, words)

    def read_values(self, keys: KeyArray, out: NDArray[np.float32]) -> None:
        """Copy the values of those `keys` that have a row here into their places of `out`; nothing moves."""
        slots = self.find(keys)
        at = np.flatnonzero(slots >= 0)
        words = np.empty((len(at), self._values.stop), np.uint32)
        self.read(slots[at], words)
        out[at] = words.view(np.float32)[:, self._values]

    def headers_in_tags(self, low: int, high: int) -> Headers:
        """Return headers of all rows whose tag is at least `low` and less than `high`; their places are slots."""
        slots, tags = self.in_tags(low, high)
        words = np.empty((len(slots), _HEADER_WORDS), np.uint32)
        if self._keeps_headers:
            words = self.kept(slots)
        else:
            self.read(slots, words)
        return Headers(tags, words.view(np.float32)[:, _USES], words[:, _CLOCK], slots)

    def row_parts(self) -> Iterator[Rows]:
        """Yield all rows, up to `part_rows` at a time, in the order of the file."""
        return (self._rows(keys, words) for keys, words in self.parts(self.part_rows))

    def _rows(self, keys: KeyArray, words: NDArray[np.uint32]) -> Rows:
        numbers = words.view(np.float32)
        values, state = numbers[:, self._values], numbers[:, self._values.stop :]
        return Rows(keys, values.copy(), state.copy(), numbers[:, _USES].copy(), words[:, _CLOCK].copy())
