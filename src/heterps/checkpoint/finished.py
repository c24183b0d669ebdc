"""Which checkpoints are in a folder, and what each of them builds on."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from safetensors import SafetensorError

from heterps.checkpoint import manifest
from heterps.checkpoint.manifest import Manifest
from heterps.errors import CorruptCheckpoint, RunError, StorageError

T = TypeVar("T")
FINISHED = re.compile(r"(\d{10,})(?:-(\d+))?")


class Finished(NamedTuple):
    """A finished checkpoint; they sort by age."""

    clock: int
    attempt: int  # how many times the clock had been reached
    path: Path


def finished(folder: Path) -> list[Finished]:
    """Return the finished checkpoints in `folder`, the newest last."""
    found = [(FINISHED.fullmatch(path.name), path) for path in entries(folder) if path.is_dir()]
    return sorted(Finished(int(match[1]), int(match[2] or 1), path) for match, path in found if match)


def latest(folder: str | Path) -> Path | None:
    """Return the newest finished checkpoint in `folder`, not checked; None when there is none."""
    found = finished(Path(folder))
    return found[-1].path if found else None


def of_clock(folder: str | Path, clock: int) -> Path | None:
    """Return the newest finished checkpoint of a clock in `folder`, not checked; None when there is none."""
    return next((found.path for found in reversed(finished(Path(folder))) if found.clock == clock), None)


def find(folder: Path, named: str | Path) -> Path | None:
    """Return the finished checkpoint of `folder` with this path, name or clock, not checked; None when there is none.

    Names may be without their zeros: 1234 or 1234-2.
    """
    path = Path(named)
    if str(path) != path.name and path.parent.resolve() != folder.resolve():
        return None
    return next((one.path for one in finished(folder) if short_name(one.path.name) == short_name(path.name)), None)


def short_name(name: str) -> str:
    """Return the name of a checkpoint or version from that of its folder, which begins with zeros."""
    return name.lstrip("0") or "0"


def saved_samples(folder: str | Path) -> int | None:
    """Return the samples of the newest checkpoint in `folder` that says how many it has; None when there is none."""
    for each in reversed(finished(Path(folder))):
        with suppress(CorruptCheckpoint):
            return read_manifest(each.path).samples
    return None


def read_manifest(path: Path) -> Manifest:
    """Read what the checkpoint at `path` consists of."""
    return manifest.decode(read_file(path / manifest.NAME, Path.read_bytes), path / manifest.NAME)


def lineage(path: Path, index: Manifest) -> list[tuple[Path, Manifest]]:
    """Return what the checkpoint at `path` builds on, the oldest first, and itself. Each is checked by its digest."""
    found = [(path, index)]
    while index.parent_xxh3 is not None:
        path, child = path.parent / (index.parent or ""), path
        if not FINISHED.fullmatch(index.parent or "") or path in [each for each, _ in found]:
            raise CorruptCheckpoint(f"{child / manifest.NAME} is damaged: {index.parent!r} cannot be its parent.")
        if not path.is_dir():
            raise CorruptCheckpoint(f"{child} has only what changed since {path}, which is missing.")
        expected, index = index.parent_xxh3, read_manifest(path)
        if index.xxh3 != expected:
            raise CorruptCheckpoint(f"{child} has what changed since another {path.name} than the one that is there.")
        found.append((path, index))
    return found[::-1]


def ancestors(path: Path) -> set[Path]:
    """Return a checkpoint and those that it builds on, as far as that can be told."""
    try:
        return {each for each, _ in lineage(path, read_manifest(path))}
    except (CorruptCheckpoint, RunError, StorageError):
        return {path}


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def read_file(path: Path, how: Callable[[Path], T]) -> T:
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
