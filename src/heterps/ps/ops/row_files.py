"""Files of rows that servers write and read themselves, so that no other process holds their rows.

saving    coordinator --SaveRows(path)--> every server writes its own rows --> Saved(bytes, digest) --> manifest
loading   coordinator --LoadRows(paths)--> every server reads the rows whose home it is
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from heterps.errors import NotFinite, StorageError
from heterps.ps.ops import base
from heterps.ps.protocol.frames import Frames
from heterps.ps.protocol.messages import Count
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.row_files import RowFile, shard_path
from heterps.ps.shard.shard import Shard
from heterps.wire import Limits, Malformed

FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]
MAX_PATHS = 4096
FilePaths = Annotated[tuple[FilePath, ...], Meta(max_length=MAX_PATHS)]


class SaveRows(base.Read, frozen=True, tag="save_rows"):
    """Write the rows that the server has of a sparse table to the file `path` of the folder that all share."""

    path: FilePath

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        _can_read(shard, [self.path])
        return partial(self.run, shard)

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        """Answer in any case: a save that fails is the coordinator's to tell, and no loss of the server."""
        try:
            written = self.write(shard)
        except (StorageError, NotFinite) as error:
            kind: Any = type(error).__name__
            return Saved(kind=kind, text=str(error)), []
        return (Saved() if written is None else Saved(written.num_bytes, written.xxh3)), []

    def write(self, shard: Shard) -> RowFile | None:
        """Return the new file; None where the server cannot see its folder."""
        return shard.save_rows(self.table, self.path)


class Saved(base.Result, frozen=True, tag="saved"):
    """The file that was written; none where the server cannot see its folder. Or why not: `kind` is the name of a
    class in heterps.errors."""

    num_bytes: Count | None = None
    xxh3: str = ""
    kind: Literal["", "StorageError", "NotFinite"] = ""
    text: str = ""


class FindRows(base.Read, frozen=True, tag="find_rows"):
    """Whether the server can read these files."""

    paths: FilePaths

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        _can_read(shard, self.paths)
        return partial(self.run, shard)

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        return FilesFound(shard.can_read(self.paths)), []


class FilesFound(base.Result, frozen=True, tag="found"):
    """Whether all files are there."""

    are_there: bool


class LoadRows(base.Push, frozen=True, tag="load_rows"):
    """Read the rows whose home the server is from these files, of a table that has seen `num_pushes` and is empty."""

    num_pushes: Count
    paths: FilePaths

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        if not _can_read(shard, self.paths):
            raise Malformed(f"table {self.table}: this server does not see all of the files {', '.join(self.paths)}")
        load = partial(shard.load_rows, paths=self.paths, num_pushes=self.num_pushes)
        return self.once(shard, 0, lambda source: load(source, self.table, self.sequence))


def _can_read(shard: Shard, paths: Iterable[str]) -> bool:
    """Whether the shard can read these files; Malformed where a path leaves the folder that all share."""
    try:
        return shard.can_read(paths)
    except ValueError as error:
        raise Malformed(str(error)) from None


class SaveRowsCall(base.Ask[Saved]):
    """Every server writes its rows of a sparse table. The result is a function that gives the files, None where a
    server does not see the folder, or raises what a server met.

    op  for all servers; `path` is what the path of each file begins with
    """

    def __init__(self, op: SaveRows) -> None:
        super().__init__(op, Saved)
        self._save, self._path = op, op.path

    def op_for(self, number: int, roster: Roster) -> base.Op:
        return replace(self._save, path=shard_path(self._path, roster.epoch, number))

    def result(self) -> Callable[[], list[RowFile] | None]:
        return self._files

    def _files(self) -> list[RowFile] | None:
        for saved in self._answers.values():
            if saved.kind:
                raise {"StorageError": StorageError, "NotFinite": NotFinite}[saved.kind](saved.text)
        if any(saved.num_bytes is None for saved in self._answers.values()):
            return None
        return [
            RowFile(shard_path(self._path, self._epoch, number), saved.num_bytes or 0, saved.xxh3)
            for number, saved in sorted(self._answers.items())
        ]


OPS, RESULTS = (SaveRows, FindRows, LoadRows), (Saved, FilesFound)
