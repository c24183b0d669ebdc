"""RowFolder: files of rows below one folder, as the holder of a shard of a table writes and reads them.

A server of a run has one of the run's folder, so that it saves its own rows into the draft of a checkpoint that the
coordinator has made, and reads its own from a finished one. Files are written in drafts only: a finished checkpoint is
never written to again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path, PurePosixPath

from heterps import background
from heterps.checkpoint import disk
from heterps.checkpoint.indexed_rows import IndexedRows
from heterps.checkpoint.rows import RowPart, read_parts, write_rows
from heterps.ps.protocol.row_files import RowFileInfo
from heterps.ps.table.rows import Rows

DRAFT = ".saving-"
"""The name of a checkpoint that is being written begins with this."""


class RowFolder:
    """Files of rows below `folder`; `heterps.ps` knows it as RowFiles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has_folder(self, path: str) -> bool:
        return self.locate(path).parent.is_dir()

    def has(self, path: str) -> bool:
        return self.locate(path).is_file()

    def write(self, path: str, parts: Iterable[RowPart], num_rows: int, widths: tuple[int, int]) -> RowFileInfo:
        target = self.locate(path)
        if not any(part.startswith(DRAFT) for part in PurePosixPath(path).parts):
            raise ValueError(f"{path}: rows are written into the draft of a checkpoint only")
        with disk.storage_errors(f"{target}: cannot save {num_rows:,} rows"):
            if target.exists():  # the same request came again, under another life of its server
                disk.remove(target)
            with disk.new_file(target) as file:
                write_rows(file, parts, num_rows, widths)
        return RowFileInfo(path, file.num_bytes, file.xxh3)

    def start(self, write: Callable[[], RowFileInfo]) -> Future[RowFileInfo]:
        return background.start(write, "heterps-rows")

    def read(self, path: str) -> Iterator[Rows]:
        return read_parts(self.locate(path))

    def read_all(self, paths: Sequence[str]) -> Iterator[Rows]:
        rows = IndexedRows(self.locate(path) for path in paths)
        try:
            yield from rows.in_order()
        finally:
            rows.close()

    def locate(self, path: str) -> Path:
        """Return where a file is; ValueError for a path that leaves the folder."""
        parts = PurePosixPath(path).parts
        if not parts or ".." in parts or PurePosixPath(path).is_absolute() or "\0" in path:
            raise ValueError(f"{path!r} is no path below the folder of the run")
        return self._folder / path
