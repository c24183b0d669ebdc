"""Budget: how many rows a table may have in memory, when the rest is on disk.

memory_bytes >= rows in memory + their index + the index of the rows on disk (10 to 12.5 bytes each, 18 to 22.5
                with eviction, which needs to know the headers of all rows)
"""

from __future__ import annotations

from heterps.errors import ConfigError
from heterps.ps.table import kernels
from heterps.ps.table.cold_rows import ColdRows
from heterps.ps.table.sparse import SparseTable
from heterps.ps.table.store import MAX_LOAD

LEAST_ROWS = 256
"""Rows that must fit in memory, or a table would do nothing but read and write its disk."""


class Budget:
    """`memory_bytes` for the rows of `hot` and all that finds those of `cold`. ConfigError where it is too small."""

    def __init__(self, memory_bytes: int, hot: SparseTable, cold: ColdRows) -> None:
        self.memory_bytes = memory_bytes
        self._hot, self._cold = hot, cold
        self.capacity(LEAST_ROWS)

    def capacity(self, num_rows: int) -> int:
        """Return how many rows of `num_rows` may be in memory: all, or as many as leave room for the index of all rows
        on disk.
        """
        if not len(self._cold):
            available = self.memory_bytes - self._cold.num_bytes
            if self._fitting(available) < num_rows:
                self._hot.store.finish_growth()  # without the old index all rows may fit
            if (fitting := self._fitting(available)) >= num_rows:
                return fitting
        index_bytes = self._cold.index_bytes(num_rows)
        fitting = self._fitting(self.memory_bytes - index_bytes)
        if fitting < LEAST_ROWS:
            needed = index_bytes + 8 * self._hot.store.index_size + LEAST_ROWS * self._hot.row_bytes
            raise ConfigError(
                f"tiers.memory_bytes gives this table shard {self.memory_bytes:,} bytes; with {num_rows:,} rows it "
                f"needs at least {needed:,}: {LEAST_ROWS} rows and their index in memory, and the index of those on "
                "disk. Raise it, or use more servers."
            )
        return fitting

    def _fitting(self, num_bytes: int) -> int:
        """Return how many rows and their index fit in `num_bytes`.

        The index doubles when it is full, and is never smaller again. While it does, the old one is there still.
        """
        row_bytes = self._hot.row_bytes
        index_bytes = self._hot.num_bytes - len(self._hot) * row_bytes
        size, fitting = self._hot.store.index_size, 0
        while num_bytes > index_bytes:
            full = int(MAX_LOAD * size) - kernels.BLOCK
            fitting = max(fitting, min(full, (num_bytes - index_bytes) // row_bytes))
            size *= 2
            index_bytes = 12 * size
        return fitting
