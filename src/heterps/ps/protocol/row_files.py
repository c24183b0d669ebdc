"""Files of rows: where shards of sparse tables are written to and read from, by the processes that hold them.

    saving    coordinator --SaveRows(path)--> every server begins to write its own rows, as they are now
                          --SaveRows, again-> Saved: rows that are left, at last bytes and digest --> manifest
    loading   coordinator --LoadRows(paths)--> every server reads the rows whose home it is

The format is not known here: the process that starts a server gives it an object that reads and writes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from heterps.ps.protocol.messages import Count, Ordinal
from heterps.ps.table.changes import Reader
from heterps.ps.table.rows import Rows


class RowFileInfo(NamedTuple):
    """A file of rows: its path below the folder that all share, its length and the digest of its bytes."""

    path: str
    num_bytes: int
    xxh3: str


class VersionRange(NamedTuple):
    """Which rows a file of a table has: those that changed since version `since` for a reader, all where that is 0.

    number  of this version, from 1 on; each is used once
    """

    number: Ordinal
    since: Count
    reader: Reader


class RowFiles(Protocol):
    """Files below one folder; a path that leaves it is a ValueError. StorageError where the disk refuses."""

    def has_folder(self, path: str) -> bool:
        """Whether the folder of a file of this path is there: it is not on a machine that shares no disk."""

    def has(self, path: str) -> bool:
        """Whether there is a file of this path."""

    def write(self, path: str, parts: Iterable[Rows], num_rows: int, widths: tuple[int, int]) -> RowFileInfo:
        """Write a new file of `num_rows` rows, whose values and state have these widths, part after part."""

    def start(self, write: Callable[[], RowFileInfo]) -> Future[RowFileInfo]:
        """Begin to write a file while the caller goes on."""

    def read(self, path: str) -> Iterator[Rows]:
        """Yield the rows of a file, a part at a time."""

    def read_all(self, paths: Sequence[str]) -> Iterator[Rows]:
        """Yield the rows of files as `JobClient.load_rows` takes them: of each key the last, if it did not go."""


def shard_path(path: str, epoch: int, number: int) -> str:
    """Name the file of shard `number` under a roster of this epoch; a save that begins again under another differs."""
    return f"{path}.{epoch}-{number:03d}.arrow"
