"""Parquet files: a row group is one of the file's own, and its footer describes it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pyarrow.parquet as pq

from heterps.data.file import DataFile


class ParquetFile(DataFile):
    """One Parquet file and its footer."""

    title = "Parquet"

    def __init__(self, address: str, fs: Any, path: str) -> None:
        super().__init__(address, fs, path)
        with fs.open(path, "rb") as stream, pq.ParquetFile(stream) as parquet:
            self._footer = parquet.metadata
            self.schema = parquet.schema_arrow
        self.group_rows = [self._footer.row_group(i).num_rows for i in range(self._footer.num_row_groups)]

    def load(self, row_group: int, columns: list[str]) -> Any:
        if self._is_local:
            # Not memory-mapped: a file truncated while in use would kill the process instead of raising.
            with pq.ParquetFile(self.path, metadata=self._footer) as parquet:
                return parquet.read_row_group(row_group, columns=columns, use_threads=False)
        with self.fs.open(self.path, "rb") as stream, pq.ParquetFile(stream, metadata=self._footer) as parquet:
            return parquet.read_row_group(row_group, columns=columns, use_threads=False)

    def content(self, row_group: int) -> tuple[Any, ...]:
        """The number of compressed bytes of every column."""
        footer = self._footer.row_group(row_group)
        return tuple(footer.column(i).total_compressed_size for i in range(footer.num_columns))

    @cached_property
    def _is_local(self) -> bool:
        protocol = self.fs.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)
