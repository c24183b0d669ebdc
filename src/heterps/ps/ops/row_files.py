"""Files of rows that servers write and read themselves, so that no other process holds their rows.

saving    coordinator --SaveRows(path)--> every server begins to write its own rows, as they are now
                      --SaveRows, again-> Saved: rows that are left, at last bytes and digest --> manifest
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
from heterps.ps.protocol.row_files import RowFileInfo, VersionRange, shard_path
from heterps.ps.shard.shard import Shard
from heterps.wire import Limits, Malformed

FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]
MAX_PATHS = 4096
FilePaths = Annotated[tuple[FilePath, ...], Meta(max_length=MAX_PATHS)]


class SaveRows(base.Read, frozen=True, tag="save_rows"):
    """Write the rows that the server has of a sparse table to the file `path` of the folder that all share.

    The first request begins it with the rows as they are then, or with those of a `version`, and others, which do not
    `begin`, ask how far it is. Training goes on meanwhile.
    """

    path: FilePath
    version: VersionRange | None = None
    begins: bool = True

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        _can_read(shard, [self.path])
        return partial(self.run, shard)

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        """Answer even if the save fails: the coordinator tells of it, and the server goes on."""
        try:
            if self.begins and not shard.begin_save(self.table, self.path, self.version):
                return Saved(), []
            found = shard.saved_rows(self.table, self.path)
        except (StorageError, NotFinite) as error:
            kind: Any = type(error).__name__
            return Saved(kind=kind, text=str(error)), []
        if found is None:
            return Saved(kind="StorageError", text=f"a server was started anew while it wrote {self.path}"), []
        return (Saved(num_left=found) if isinstance(found, int) else Saved(found.num_bytes, found.xxh3)), []


class Saved(base.Result, frozen=True, tag="saved"):
    """The file that was written, or how many rows are left to write; neither where the server cannot see its folder.

    With a `kind`, the name of a class in heterps.errors, the save has failed.
    """

    num_bytes: Count | None = None
    xxh3: str = ""
    kind: Literal["", "StorageError", "NotFinite"] = ""
    text: str = ""
    num_left: Count | None = None


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
    """Every server begins to write its rows of a sparse table, or says how far it is.

    The result is a function that tells it, or raises what a server met.

    op  for all servers; `path` is what the path of each file begins with
    """

    def __init__(self, op: SaveRows) -> None:
        super().__init__(op, Saved)
        self._save, self._path = op, op.path

    def op_for(self, number: int, roster: Roster) -> base.Op:
        return replace(self._save, path=shard_path(self._path, roster.epoch, number))

    def result(self) -> Callable[[], list[RowFileInfo] | int | None]:
        return self._found

    def _found(self) -> list[RowFileInfo] | int | None:
        """Return the files, the number of rows that are left to write, or None where a server sees no such folder."""
        answers = sorted(self._answers.items())
        for _, saved in answers:
            if saved.kind:
                raise {"StorageError": StorageError, "NotFinite": NotFinite}[saved.kind](saved.text)
        if any(saved.num_bytes is None and saved.num_left is None for _, saved in answers):
            return None
        if any(saved.num_left is not None for _, saved in answers):
            return sum(saved.num_left or 0 for _, saved in answers)
        return [
            RowFileInfo(shard_path(self._path, self._epoch, number), saved.num_bytes or 0, saved.xxh3)
            for number, saved in answers
        ]


OPS, RESULTS = (SaveRows, FindRows, LoadRows), (Saved, FilesFound)
