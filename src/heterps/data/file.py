"""The contract of a file format: a file is a sequence of row groups, and each is read as an Arrow table.

    file --(opened: only what describes it)--> schema, number of rows of each row group
         --(read: one row group)-------------> Arrow table --(decode.py)--> arrays

To add a format, derive a class from DataFile, with its suffixes, and name it in `config/format.py`; from outside
heterps, call `heterps.register_format`. Everything else (order, batches, missing values, positions) is the same for all
formats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Self

import pyarrow as pa

from heterps.config import Format
from heterps.data.storage import FAILURES, first_line, is_local, open_remote, retried
from heterps.errors import DataError


class DataFile(ABC):
    """One file of a data set. It is opened by `DataFile(address, fs, path)`, where `path` is its path in `fs`.

    The constructor of a format sets `schema` and `group_rows`. It raises FileNotFoundError, OSError, or ValueError if
    the file has another format; each becomes a DataError that names the file. Methods are called by several threads.
    """

    title: ClassVar[str]  # name of the format in messages
    suffixes: ClassVar[tuple[str, ...]] = ()  # by which the names of its files end; none: a job must name the format
    schema: Any  # Arrow's schema of the columns
    group_rows: Sequence[int]  # number of rows of each row group

    def __init__(self, address: str, fs: Any, path: str) -> None:
        self.address = address
        self.fs = fs  # fsspec's file system
        self.path = path

    @classmethod
    def open(cls, address: str, fs: Any, path: str, options: Format) -> Self:  # noqa: ARG003
        """Open a file; a format that has `options` reads it by them."""
        return cls(address, fs, path)

    @abstractmethod
    def load(self, row_group: int, columns: list[str]) -> Any:
        """Return these columns of a row group as an Arrow table, decoded on the calling thread."""

    def read(self, row_group: int, columns: Sequence[str]) -> Any:
        """Return these columns of a row group as an Arrow table; raises DataError, which names the file."""
        try:
            return retried(self.address, self.fs, lambda: self._try(row_group, list(columns)))
        except (*FAILURES, pa.ArrowException) as error:
            raise DataError(
                f"{self.address}: row group {row_group} cannot be read: {first_line(error)}. "
                "The file is damaged or was changed while it was in use: write it anew, or take it out of the data."
            ) from error

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """An Arrow file of the content, to be read at any place. A remote file stays open for the next reads."""
        if is_local(self.fs):
            with pa.OSFile(self.path) as source:
                yield source
        else:
            yield self._remote

    @cached_property
    def _remote(self) -> Any:
        return open_remote(self.fs, self.path)

    def _try(self, row_group: int, columns: list[str]) -> Any:
        try:
            return self.load(row_group, columns)
        except FAILURES:
            self.__dict__.pop("_remote", None)  # the next attempt opens the file anew
            raise

    def content(self, row_group: int) -> tuple[Any, ...]:  # noqa: ARG002
        """Facts that change if the row group is rewritten. Checkpoints hold their hash, so that they detect it."""
        return (self.num_bytes,)

    @cached_property
    def num_bytes(self) -> int:
        return int(self.fs.size(self.path) or 0)
