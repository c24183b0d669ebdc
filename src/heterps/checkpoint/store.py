"""Save and load checkpoints, so that whatever happens in between there is a good one: the old or the new, never half.

    run/checkpoints/
      .saving-0000001234-567/    [1] a draft beside the finished ones
          tables/000-user.1-000.arrow    [2] each file written and synced, by the holder of the rows: servers their own
          tables/000-user.safetensors    what the table knows besides its rows, if anything
          dense.safetensors
          progress.json
          manifest.json          [3] last inside: sizes and digests of all others
      0000001234/                [4] the draft, renamed; then the folder above is synced
      0000001000/                [5] older ones beyond `keep` go, and only now

Between [1] and [4] training goes on: holders write their rows as they were at [1] (ps/table/frozen.py).

A crash before [4] leaves a draft, which the next save removes; a crash after it leaves one checkpoint too many. A
finished checkpoint is never written to again: when a clock is reached a second time (the first checkpoint of it was bad
and the run went back), the second gets the name 0000001234-2. One process saves into a folder at a time.

A checkpoint may have only what changed since another, its parent, whose manifest it knows by its digest:

    0000001000  <--  0000001100  <--  0000001200      0000001300  <--  0000001400
    all rows         changes          changes         all rows         changes

What others build on stays as long as they do, and so does the newest with which the new one has nothing in common: one
damaged file never spoils all.

`save_as` writes one snapshot to a path of its own, in the same steps: an older one there goes after the new is whole.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from heterps.checkpoint import disk, manifest
from heterps.checkpoint.finished import ancestors, entries, finished, lineage, read_file, read_manifest
from heterps.checkpoint.manifest import File, Manifest
from heterps.checkpoint.row_folder import DRAFT, RowFolder
from heterps.checkpoint.rows import read_header, read_parts
from heterps.checkpoint.snapshot import Snapshot, TableRows, TableStream
from heterps.errors import CorruptCheckpoint, RunError, StorageError
from heterps.ps.protocol.row_files import RowFileInfo
from heterps.ps.table.rows import Rows

log = logging.getLogger(__name__)

RUBBISH = ".removing-"
NO_VALUES = (0, 0)
"""The widths of the rows in a file of keys that went."""


def save(folder: str | Path, snapshot: Snapshot, keep: int = 2, spare: int | None = None) -> Path:
    """Write `snapshot` into `folder` and return the new checkpoint's path; at least `keep` >= 2 checkpoints stay.

    The newest of the clock `spare` stays as well, however old it is.

    When it returns, the checkpoint is on the disk. When it raises (StorageError), the earlier ones are as they were.
    Checkpoints of this or a later clock belong to a past that was given up, and are removed.
    """
    return begin_save(folder, snapshot, keep, spare)()


def begin_save(folder: str | Path, snapshot: Snapshot, keep: int = 2, spare: int | None = None) -> Callable[[], Path]:
    """Do the part of `save` for which the job must stand still, and return a function that does the rest.

    That may run on another thread while training goes on, but not while another save into the folder is under way.
    """
    if keep < 2:
        raise ValueError(f"keep is {keep}; at least two checkpoints stay, so that a bad one has a predecessor")
    finish = begin(folder, snapshot)

    def end() -> Path:
        target = finish()
        _prune(Path(folder), target, snapshot.clock, keep, spare)  # [5]
        return target

    return end


def write(folder: str | Path, snapshot: Snapshot) -> Path:
    """Write `snapshot` into `folder` and return its path: [1] to [4] of `save`. Nothing else is removed."""
    return begin(folder, snapshot)()


def begin(folder: str | Path, snapshot: Snapshot) -> Callable[[], Path]:
    """Begin to `write`, and return a function that ends it; see `begin_save`."""
    folder = Path(folder)
    size = f"{snapshot.num_bytes / 1e6:,.1f} MB"
    what = f"{folder}: cannot save the checkpoint of clock {snapshot.clock} ({size})"
    # Servers know a save by its path: one that a process which died had begun is not taken for this one.
    draft = folder / f"{DRAFT}{snapshot.clock:010d}-{os.getpid()}"
    with _saving(what, draft):
        disk.make_folder(folder)
        _remove_leftovers(folder)
        write_rest = _begin(draft, snapshot)  # [1]

    def end() -> Path:
        with _saving(what, draft):
            write_rest()  # [2] [3]
            target = _free_name(folder, snapshot.clock)
            disk.rename(draft, target)  # [4]
        return target

    return end


@contextmanager
def _saving(what: str, draft: Path) -> Iterator[None]:
    """Give the space of the draft back after an error, and say `what` could not be done."""
    with disk.storage_errors(what):
        try:
            yield
        except Exception as error:
            _try_to_remove(draft)
            if isinstance(error, StorageError):  # of one of those who write their own rows
                raise StorageError(f"{what}: {error}") from error
            raise


def save_as(path: str | Path, snapshot: Snapshot) -> Path:
    """Write `snapshot` to the folder `path`, in the place of an older one; RunError where something else is there.

    When it raises (StorageError), the older one is as it was. After a crash, `load` finds the older one or the new one.
    """
    path = Path(path).absolute()
    draft, rubbish = _beside(path)
    if path.exists() and not (path / manifest.NAME).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} is there already, and is no saved model. Choose another folder, or remove it.")
    what = f"{path}: cannot save the model ({snapshot.num_bytes / 1e6:,.1f} MB)"
    with disk.storage_errors(what):
        disk.make_folder(path.parent)
        if rubbish.exists() and not path.exists():  # a crash came between the two renames
            disk.rename(rubbish, path)
        for leftover in (draft, rubbish):
            if leftover.exists():
                disk.remove(leftover)
        try:
            _begin(draft, snapshot)()  # [1] [2] [3]
            if path.exists():
                disk.rename(path, rubbish)
            disk.rename(draft, path)  # [4]
        except Exception as error:
            if rubbish.exists() and not path.exists():
                disk.rename(rubbish, path)
            _try_to_remove(draft)
            if isinstance(error, StorageError):  # of one of those who write their own rows
                raise StorageError(f"{what}: {error}") from error
            raise
        if rubbish.exists():
            _try_to_remove(rubbish)  # [5]
    return path


def _beside(path: Path) -> tuple[Path, Path]:
    """The names beside `path` of a new snapshot before it has that name, and of an older one that goes."""
    return path.parent / f"{DRAFT}{path.name}", path.parent / f"{RUBBISH}{path.name}"


def load(path: str | Path) -> Snapshot:
    """Read the checkpoint at `path`. Every byte is checked against its digest first (CorruptCheckpoint)."""
    path = Path(path)
    if not path.exists():
        draft, older = _beside(path.absolute())
        path = draft if older.exists() and draft.exists() else path  # a crash came between the renames of `save_as`
    if not path.is_dir():
        raise RunError(f"{path}: there is no such checkpoint. Those of a run are in its folder checkpoints/.")
    index = read_manifest(path)
    if index.parent is not None and index.parent_xxh3 is None:
        raise RunError(
            f"{path} has only what changed since {index.parent}, for those who follow the run. Name a checkpoint of "
            "its folder checkpoints/."
        )
    return read(path, index)


def read(path: Path, index: Manifest) -> Snapshot:
    """Read the checkpoint or the version at `path`. Every byte is checked against its digest first."""
    links = lineage(path, index)
    for folder, link in links:
        for file in link.files:
            _verify(folder, file)
    return Snapshot(
        clock=index.clock,
        samples=index.samples,
        dense=read_file(index.dense.locate(path), safetensors.numpy.load_file),
        tables={name: _read_table(links, name) for name in index.tables},
        progress=read_file(index.progress.locate(path), lambda p: json.loads(p.read_bytes())),
        parent=index.parent,
        parent_xxh3=index.parent_xxh3,
    )


def load_latest(folder: str | Path) -> Snapshot:
    """Read the newest good snapshot in `folder`; a damaged one is passed over with a warning, all of them are an error.

    A checkpoint of a newer format is not passed over: going back behind it would silently lose what it holds.
    """
    damages = []
    for each in reversed(finished(Path(folder))):
        try:
            return load(each.path)
        except CorruptCheckpoint as error:
            damages.append(str(error))
            log.warning("%s Going back to the checkpoint before it.", error)
    if damages:
        raise CorruptCheckpoint(
            f"{folder}: no checkpoint is good, so the run cannot be resumed; start it anew.\n" + "\n".join(damages)
        )
    raise RunError(f"{folder}: there is no checkpoint here. Check the path, or start without --resume.")


def _read_table(links: Sequence[tuple[Path, Manifest]], name: str) -> TableStream:
    """Return a table whose rows are read when they are needed: all of them may not fit into memory."""
    folder, index = links[-1]
    files = [(place, file) for place, link in links for file in link.tables.get(name, [])]
    located = [file.locate(place) for place, file in files]
    headers = [read_file(path, read_header) for path in located]
    kinds = {header.widths for header in headers} - ({NO_VALUES} if len(links) > 1 else set())
    if len(kinds) != 1:
        raise CorruptCheckpoint(f"{folder}: the files of table {name} have rows of different widths.")
    metadata, meta = index.upkeep.get(name), index.meta.get(name, headers[0].meta)
    home = folder.absolute().parent  # and the run's folder is above it
    paths = tuple(f"{home.name}/{place.name}/{file.path}" for place, file in files)
    rows = RowFolder(home.parent)
    num_rows = sum(header.num_rows for header in headers) if len(links) == 1 else meta.get("num_rows")
    if not isinstance(num_rows, int):
        raise CorruptCheckpoint(f"{folder}: it does not say how many rows table {name} has.")
    return TableStream(
        num_rows=num_rows,
        widths=kinds.pop(),
        read=lambda: rows.read_all(paths) if len(links) > 1 else chain.from_iterable(map(read_parts, located)),
        meta=meta,
        metadata={} if metadata is None else read_file(metadata.locate(folder), safetensors.numpy.load_file),
        files=(rows, paths),
    )


def _begin(draft: Path, snapshot: Snapshot) -> Callable[[], None]:
    """Make the draft, and let those who hold rows begin to write them. What is returned writes all that is left."""
    disk.make_folder(draft / "tables")
    home = draft.absolute().parent
    folder, place = RowFolder(home.parent), f"{home.name}/{draft.name}"
    progress = json.dumps(snapshot.progress).encode()
    paths = {name: f"tables/{_file_name(number, name)}" for number, name in enumerate(snapshot.tables)}
    writing = {name: _begin_rows(rows, folder, f"{place}/{paths[name]}") for name, rows in snapshot.tables.items()}

    def end() -> None:
        tables, metadata = {}, {}
        for name, rows in snapshot.tables.items():
            written = writing[name]()
            if isinstance(rows, TableStream) and rows.gone is not None and len(rows.gone):
                written = [_write_gone(folder, f"{place}/{paths[name]}.gone.arrow", rows.gone), *written]
            tables[name] = [
                File(path=file.path.removeprefix(f"{place}/"), num_bytes=file.num_bytes, xxh3=file.xxh3)
                for file in written
            ]
            if rows.metadata:
                metadata[name] = _write_arrays(draft, f"{paths[name]}.safetensors", rows.metadata)
        disk.sync_folder(draft / "tables")
        index = Manifest(
            version=manifest.VERSION,
            clock=snapshot.clock,
            samples=snapshot.samples,
            dense=_write_arrays(draft, "dense.safetensors", snapshot.dense),
            progress=_write_file(draft, "progress.json", progress),
            tables=tables,
            meta={name: dict(rows.meta) for name, rows in snapshot.tables.items()},
            upkeep=metadata,
            parent=snapshot.parent,
            parent_xxh3=snapshot.parent_xxh3,
        )
        _write_file(draft, manifest.NAME, index.encode())
        disk.sync_folder(draft)

    return end


def _begin_rows(rows: TableRows | TableStream, folder: RowFolder, path: str) -> Callable[[], list[RowFileInfo]]:
    """Begin to write a table, to files whose paths begin with `path`; what is returned waits for them."""
    if isinstance(rows, TableStream) and rows.write is not None:
        return rows.write(folder, path)
    write = partial(folder.write, f"{path}.arrow", rows.parts(), len(rows), rows.widths)
    if isinstance(rows, TableRows):
        return lambda: [write()]
    written = [write()]  # at once, before the table changes
    return lambda: written


def _write_gone(folder: RowFolder, path: str, keys: NDArray[np.uint64]) -> RowFileInfo:
    """Write keys whose rows went, as rows without values."""
    num = len(keys)
    none = np.empty((num, 0), np.float32)
    rows = Rows(keys, none, none, np.zeros(num, np.float32), np.zeros(num, np.uint32))
    return folder.write(path, [rows], num, NO_VALUES)


def _write_arrays(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]]) -> File:
    # safetensors takes the memory as it lies: an array that is a view of another must be laid out first.
    laid_out = {key: np.asarray(array, order="C") for key, array in arrays.items()}
    return _write_file(folder, name, safetensors.numpy.save(laid_out))


def _write_file(folder: Path, name: str, content: bytes) -> File:
    with disk.new_file(folder / name) as file:
        file.write(content)
    return File(path=name, num_bytes=file.num_bytes, xxh3=file.xxh3)


def _file_name(number: int, table: str) -> str:
    """Return a name that every file system takes, whatever the table is called; the manifest knows which is whose."""
    return f"{number:03d}-{re.sub(r'[^A-Za-z0-9_]+', '_', table)[:64]}"


def _verify(folder: Path, file: File) -> None:
    path = file.locate(folder)
    num_bytes, xxh3 = read_file(path, disk.measure)
    if (num_bytes, xxh3) != (file.num_bytes, file.xxh3):
        raise CorruptCheckpoint(
            f"{path} is damaged: it should be {file.num_bytes} bytes with digest {file.xxh3}, "
            f"it is {num_bytes} bytes with digest {xxh3}."
        )


def _free_name(folder: Path, clock: int) -> Path:
    attempts = [other.attempt for other in finished(folder) if other.clock == clock]
    return folder / (f"{clock:010d}-{max(attempts) + 1}" if attempts else f"{clock:010d}")


def _remove_leftovers(folder: Path) -> None:
    for path in entries(folder):
        if path.name.startswith((DRAFT, RUBBISH)):
            disk.remove(path)


def _prune(folder: Path, new: Path, clock: int, keep: int, spare: int | None) -> None:
    """Keep `new`, the `keep - 1` of lower clocks before it, and the newest of these that has no file in common with it.

    Whatever they build on stays too.
    """
    others = [other for other in finished(folder) if other.path != new]
    before = [other.path for other in others if other.clock < clock]
    kept = [new, *before[1 - keep :], *[other.path for other in others if other.clock == spare][-1:]]
    mine = ancestors(new)
    kept += islice((path for path in reversed(before) if not ancestors(path) & mine), 1)
    needed = set[Path]().union(*map(ancestors, kept))
    remove([other.path for other in reversed(others) if other.path not in needed])  # children before their parents


def remove(paths: Iterable[Path]) -> None:
    """Remove finished checkpoints, each renamed first so that it is never half. A later save does what fails."""
    try:
        for path in paths:
            disk.rename(path, rubbish := path.parent / f"{RUBBISH}{path.name}")
            disk.remove(rubbish)
    except OSError as error:
        log.warning("%s: the new checkpoint is saved, but an old one could not be removed: %s", path.parent, error)


def _try_to_remove(path: Path) -> None:
    """Give a failed save's space back; if even that fails, the next save tries again."""
    try:
        disk.remove(path)
    except OSError:
        log.debug("%s: could not be removed", path)
