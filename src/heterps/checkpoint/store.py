"""Save and load checkpoints, so that whatever happens in between there is a good one: the old or the new, never half.

    run/checkpoints/
      .saving-0000001234/        [1] a draft beside the finished ones
          tables/000-user.1-000.arrow    [2] each file written and synced, by the holder of the rows: servers their own
          tables/000-user.safetensors    what the table knows besides its rows, if anything
          dense.safetensors
          progress.json
          manifest.json          [3] last inside: sizes and digests of all others
      0000001234/                [4] the draft, renamed; then the folder above is synced
      0000001000/                [5] older ones beyond `keep` go, and only now

A crash before [4] leaves a draft, which the next save removes; a crash after it leaves one checkpoint too many. A
finished checkpoint is never written to again: when a clock is reached a second time (the first checkpoint of it was bad
and the run went back), the second gets the name 0000001234-2. One process saves into a folder at a time.
"""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from heterps.checkpoint import disk, manifest
from heterps.checkpoint.manifest import File, Manifest
from heterps.checkpoint.row_folder import DRAFT, RowFolder
from heterps.checkpoint.rows import read_header, read_parts
from heterps.checkpoint.snapshot import Snapshot, TableStream
from heterps.errors import CorruptCheckpoint, RunError, StorageError

T = TypeVar("T")
log = logging.getLogger(__name__)

FINISHED = re.compile(r"(\d{10,})(?:-(\d+))?")
RUBBISH = ".removing-"


def save(folder: str | Path, snapshot: Snapshot, keep: int = 2, spare: int | None = None) -> Path:
    """Write `snapshot` into `folder` and return the new checkpoint's path; at least `keep` >= 2 checkpoints stay.

    The newest of the clock `spare` stays as well, however old it is.

    When it returns, the checkpoint is on the disk. When it raises (StorageError), the earlier ones are as they were.
    Checkpoints of this or a later clock belong to a past that was given up, and are removed.
    """
    if keep < 2:
        raise ValueError(f"keep is {keep}; at least two checkpoints stay, so that a bad one has a predecessor")
    folder = Path(folder)
    size = f"{snapshot.num_bytes / 1e6:,.1f} MB"
    what = f"{folder}: cannot save the checkpoint of clock {snapshot.clock} ({size})"
    with disk.storage_errors(what):
        disk.make_folder(folder)
        _remove_leftovers(folder)
        draft = folder / f"{DRAFT}{snapshot.clock:010d}"
        target = _free_name(folder, snapshot.clock)
        try:
            _write(draft, snapshot)  # [1] [2] [3]
            disk.rename(draft, target)  # [4]
        except Exception as error:
            _try_to_remove(draft)
            if isinstance(error, StorageError):  # of one of those who write their own rows
                raise StorageError(f"{what}: {error}") from error
            raise
    _prune(folder, target, snapshot.clock, keep, spare)  # [5]
    return target


def load(path: str | Path) -> Snapshot:
    """Read the checkpoint at `path`. Every byte is checked against its digest first (CorruptCheckpoint)."""
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"{path}: there is no such checkpoint. Those of a run are in its folder checkpoints/.")
    index = manifest.decode(_read(path / manifest.NAME, Path.read_bytes), path / manifest.NAME)
    rows = [file for files in index.tables.values() for file in files]
    for file in (index.dense, index.progress, *rows, *index.upkeep.values()):
        _verify(path, file)
    return Snapshot(
        clock=index.clock,
        samples=index.samples,
        dense=_read(index.dense.locate(path), safetensors.numpy.load_file),
        tables={name: _read_table(path, index, name) for name in index.tables},
        progress=_read(index.progress.locate(path), lambda p: json.loads(p.read_bytes())),
    )


def latest(folder: str | Path) -> Path | None:
    """Return the newest finished checkpoint in `folder`, not checked; None when there is none."""
    finished = _finished(Path(folder))
    return finished[-1].path if finished else None


def of_clock(folder: str | Path, clock: int) -> Path | None:
    """Return the newest finished checkpoint of a clock in `folder`, not checked; None when there is none."""
    return next((found.path for found in reversed(_finished(Path(folder))) if found.clock == clock), None)


def saved_samples(folder: str | Path) -> int | None:
    """Return the samples of the newest checkpoint in `folder` that says how many it has; None when there is none."""
    for finished in reversed(_finished(Path(folder))):
        path = finished.path / manifest.NAME
        with suppress(CorruptCheckpoint):
            return manifest.decode(_read(path, Path.read_bytes), path).samples
    return None


def load_latest(folder: str | Path) -> Snapshot:
    """Read the newest good snapshot in `folder`; a damaged one is passed over with a warning, all of them are an error.

    A checkpoint of a newer format is not passed over: going back behind it would silently lose what it holds.
    """
    damages = []
    for finished in reversed(_finished(Path(folder))):
        try:
            return load(finished.path)
        except CorruptCheckpoint as error:
            damages.append(str(error))
            log.warning("%s Going back to the checkpoint before it.", error)
    if damages:
        raise CorruptCheckpoint(
            f"{folder}: no checkpoint is good, so the run cannot be resumed; start it anew.\n" + "\n".join(damages)
        )
    raise RunError(f"{folder}: there is no checkpoint here. Check the path, or start without --resume.")


def _read_table(folder: Path, index: Manifest, name: str) -> TableStream:
    """Return a table whose rows are read when they are needed: all of them may not fit into memory."""
    located = [file.locate(folder) for file in index.tables[name]]
    headers = [_read(path, read_header) for path in located]
    if len({header.widths for header in headers}) != 1:
        raise CorruptCheckpoint(f"{folder}: the files of table {name} have rows of different widths.")
    metadata = index.upkeep.get(name)
    return TableStream(
        num_rows=sum(header.num_rows for header in headers),
        widths=headers[0].widths,
        read=lambda: chain.from_iterable(read_parts(path) for path in located),
        meta=index.meta.get(name, headers[0].meta),
        metadata={} if metadata is None else _read(metadata.locate(folder), safetensors.numpy.load_file),
        files=(RowFolder(folder.parent), tuple(f"{folder.name}/{file.path}" for file in index.tables[name])),
    )


def _write(draft: Path, snapshot: Snapshot) -> None:
    disk.make_folder(draft / "tables")
    folder, tables, metadata = RowFolder(draft.parent), {}, {}
    for number, (name, rows) in enumerate(snapshot.tables.items()):
        path = f"tables/{_file_name(number, name)}"
        place = f"{draft.name}/{path}"
        if isinstance(rows, TableStream) and rows.write is not None:
            written = rows.write(folder, place)
        else:
            written = [folder.write(f"{place}.arrow", rows.parts(), len(rows), rows.widths)]
        tables[name] = [
            File(path=file.path.removeprefix(f"{draft.name}/"), num_bytes=file.num_bytes, xxh3=file.xxh3)
            for file in written
        ]
        if rows.metadata:
            metadata[name] = _write_arrays(draft, f"{path}.safetensors", rows.metadata)
    disk.sync_folder(draft / "tables")
    index = Manifest(
        version=manifest.VERSION,
        clock=snapshot.clock,
        samples=snapshot.samples,
        dense=_write_arrays(draft, "dense.safetensors", snapshot.dense),
        progress=_write_file(draft, "progress.json", json.dumps(snapshot.progress).encode()),
        tables=tables,
        meta={name: dict(rows.meta) for name, rows in snapshot.tables.items()},
        upkeep=metadata,
    )
    _write_file(draft, manifest.NAME, index.encode())
    disk.sync_folder(draft)


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
    num_bytes, xxh3 = _read(path, disk.measure)
    if (num_bytes, xxh3) != (file.num_bytes, file.xxh3):
        raise CorruptCheckpoint(
            f"{path} is damaged: it should be {file.num_bytes} bytes with digest {file.xxh3}, "
            f"it is {num_bytes} bytes with digest {xxh3}."
        )


def _read(path: Path, how: Callable[[Path], T]) -> T:
    """Return `how(path)`, with what can be wrong with the file turned into errors that name it."""
    try:
        if not path.is_file():
            raise CorruptCheckpoint(f"{path} is missing.")
        return how(path)
    except OSError as error:
        if error.errno == errno.EIO:
            raise CorruptCheckpoint(f"{path} cannot be read back: {error.strerror}.") from error
        raise StorageError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from error
    except (ValueError, KeyError, TypeError, NotImplementedError, SafetensorError) as error:
        raise CorruptCheckpoint(f"{path} has the right digest but cannot be decoded: {error}.") from error


class Finished(NamedTuple):
    """A finished checkpoint; they sort by age."""

    clock: int
    attempt: int  # how many times the clock had been reached
    path: Path


def _finished(folder: Path) -> list[Finished]:
    """Return the finished checkpoints in `folder`, the newest last."""
    found = [(FINISHED.fullmatch(path.name), path) for path in _entries(folder) if path.is_dir()]
    return sorted(Finished(int(match[1]), int(match[2] or 1), path) for match, path in found if match)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _free_name(folder: Path, clock: int) -> Path:
    attempts = [other.attempt for other in _finished(folder) if other.clock == clock]
    return folder / (f"{clock:010d}-{max(attempts) + 1}" if attempts else f"{clock:010d}")


def _remove_leftovers(folder: Path) -> None:
    for path in _entries(folder):
        if path.name.startswith((DRAFT, RUBBISH)):
            disk.remove(path)


def _prune(folder: Path, new: Path, clock: int, keep: int, spare: int | None) -> None:
    """Keep `new` and the `keep - 1` of lower clocks before it. What goes is renamed first, so that it is never half."""
    others = [other for other in _finished(folder) if other.path != new]
    kept = [other for other in others if other.clock < clock][1 - keep :]
    kept += [other for other in others if other.clock == spare][-1:]
    try:
        for path in (other.path for other in others if other not in kept):
            disk.rename(path, rubbish := folder / f"{RUBBISH}{path.name}")
            disk.remove(rubbish)
    except OSError as error:
        log.warning("%s: the checkpoint is saved, but an old one could not be removed: %s", new, error)


def _try_to_remove(path: Path) -> None:
    """Give a failed save's space back; if even that fails, the next save tries again."""
    try:
        disk.remove(path)
    except OSError:
        log.debug("%s: could not be removed", path)
