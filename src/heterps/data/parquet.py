"""Parquet files: a row group is one of the file's own, and its footer describes it.

Checksums of pages are verified where a file has them, as those that heterps writes have (`write_page_checksum`).
"""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from heterps.data.file import DataFile
from heterps.data.storage import is_local


class ParquetFile(DataFile):
    """One Parquet file and its footer."""

    title, suffixes = "Parquet", (".parquet", ".parq", ".pq")

    def __init__(self, address: str, fs: Any, path: str) -> None:
        super().__init__(address, fs, path)
        with self.opened() as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            self._footer = parquet.metadata
            self.schema = parquet.schema_arrow
        self.group_rows = [self._footer.row_group(i).num_rows for i in range(self._footer.num_row_groups)]

    def load(self, row_group: int, columns: list[str]) -> Any:
        """Read the ranges of all columns together: near ones as one, of remote files several at a time."""
        # Not memory-mapped: a file truncated while in use would kill the process instead of raising.
        with self.opened() as source:
            parquet = pq.ParquetFile(
                source, metadata=self._footer, pre_buffer=not is_local(self.fs), page_checksum_verification=True
            )
            return parquet.read_row_group(row_group, columns=columns, use_threads=False)

    def content(self, row_group: int) -> tuple[Any, ...]:
        """The number of compressed bytes of every column."""
        footer = self._footer.row_group(row_group)
        return tuple(footer.column(i).total_compressed_size for i in range(footer.num_columns))
