"""A stream: versions of a run while it trains, for those who use its model meanwhile.

    RUN/stream/
      0000001000/    parent null             [1] all rows: who follows replaces everything
      0000001040/    parent 0000001000       [2] rows that changed since, keys that went, all dense weights
      0000001075/    parent 0000001040
      0000001110/    parent null             [3] the changes since [1] take more bytes than it: all rows again

Each version is one consistent cut, in the format of a checkpoint without optimizer state, and appears whole. When [3]
is there, what came before [1] is removed: who reads a chain has until the next but one to come to its end.

The version of an older clock than others belongs to a run that went back to a checkpoint. It has all rows, and those of
later clocks are removed: they are of a past that was given up.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heterps.checkpoint import store
from heterps.checkpoint.finished import finished, read_manifest, short_name
from heterps.checkpoint.manifest import Manifest
from heterps.checkpoint.snapshot import Snapshot
from heterps.errors import CorruptCheckpoint, RunError, StorageError

log = logging.getLogger(__name__)

FOLDER = "stream"
"""The folder of a run in which its versions are."""
WEIGHTS = "model/"
"""What the names of dense weights begin with in a checkpoint."""


class StreamWriter:
    """Writes the versions of one run, one after the other; the first has all rows."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER
        self._last: str | None = None
        self._full_bytes = self._changed_bytes = 0

    @property
    def parent(self) -> str | None:
        """What the next version should build on; None: it should have all rows."""
        return self._last if self._changed_bytes <= self._full_bytes else None

    def write(self, snapshot: Snapshot) -> Path:
        """Write a version, and remove those that nobody needs any more. After a StorageError the next has all rows."""
        self._last = None
        path = store.write(self._folder, snapshot)
        num_bytes = read_manifest(path).num_bytes
        if snapshot.parent is None:
            self._full_bytes, self._changed_bytes = num_bytes, 0
            store.remove(_superseded(self._folder, path, snapshot.clock))
        else:
            self._changed_bytes += num_bytes
        self._last = path.name
        return path


def _superseded(folder: Path, new: Path, clock: int) -> list[Path]:
    """Return the versions of a past that was given up, and those before the last with all rows before `new`."""
    others = [other for other in finished(folder) if other.path != new]
    before = [other.path for other in others if other.clock < clock]
    full = [number for number, path in enumerate(before) if (index := _manifest(path)) and index.parent is None]
    return [*(other.path for other in others if other.clock >= clock), *before[: max(full, default=0)]]


@dataclass(frozen=True, eq=False)
class Version:
    """A model at one clock of its run; or, with a `parent`, what changed since that version.

    Names are clocks: `1234`, or `1234-2` where a run came to that clock a second time. Keys without a row have the
    initial values of their table.
    """

    name: str
    clock: int
    samples: int
    parent: str | None
    weights: Mapping[str, NDArray[np.generic]]  # by name of the parameter or buffer
    rows: Mapping[str, tuple[NDArray[np.uint64], NDArray[np.float32]]]  # by table: keys [n] and values [n, dim]
    gone: Mapping[str, NDArray[np.uint64]]  # by table: keys that lost their row

    @property
    def is_full(self) -> bool:
        """Whether it has all rows, and takes the place of everything before."""
        return self.parent is None


class Stream:
    """Reads the versions of the run in `run_folder`, while it trains or afterwards.

    passed_over  names of versions that are newer than the last one returned and cannot be used: they are damaged, or
                 build on a damaged one
    """

    def __init__(self, run_folder: str | Path) -> None:
        self._folder = Path(run_folder) / FOLDER
        self._taken: tuple[str, Manifest] | None = None
        self._damaged: set[Path] = set()
        self.passed_over: tuple[str, ...] = ()

    def poll(self) -> list[Version]:
        """Return what is newer than the last version that was returned, in order; nothing if nothing is.

        The first returned has all rows. Each of the others builds on the one before it, or has all rows. A damaged one
        is passed over, with all that build on it. StorageError where files may not be read.
        """
        versions = []
        paths = [each.path for each in finished(self._folder)]
        listed = [(path, index) for path in paths if (index := _manifest(path))]
        while (found := self._next(listed)) is not None:
            versions.append(found)
        names = [path.name for path in paths]
        newer = names.index(self._taken[0]) + 1 if self._taken and self._taken[0] in names else 0
        self.passed_over = tuple(short_name(path.name) for path in paths[newer:] if path.is_dir())
        return versions

    def _next(self, listed: list[tuple[Path, Manifest]]) -> Version | None:
        """Read the version that builds on the one taken last; otherwise the newest that has all rows and is newer."""
        names = [(path.name, index) for path, index in listed]
        at = names.index(self._taken) if self._taken in names else None
        parent = None if at is None else names[at][0]
        following = [(path, index) for path, index in listed if parent is not None and index.parent == parent]
        full = [(path, index) for path, index in listed[0 if at is None else at + 1 :] if index.parent is None]
        for path, index in (*following, *reversed(full)):
            if path not in self._damaged and (version := self._read(path, index)) is not None:
                self._taken = path.name, index
                return version
        return None

    def _read(self, path: Path, index: Manifest) -> Version | None:
        try:
            snapshot = store.read(path, index)
            tables = {name: table.whole() for name, table in snapshot.tables.items()}
        except (CorruptCheckpoint, StorageError, OSError, ValueError) as error:
            if path.is_dir():  # else it was removed meanwhile: there are newer ones
                if isinstance(error, StorageError):
                    raise
                log.warning("%s is passed over: %s", path, error)
                self._damaged.add(path)
            return None
        none = np.empty(0, np.uint64)
        return Version(
            short_name(path.name),
            snapshot.clock,
            snapshot.samples,
            None if index.parent is None else short_name(index.parent),
            {name.removeprefix(WEIGHTS): a for name, a in snapshot.dense.items() if name.startswith(WEIGHTS)},
            {name: (table.keys, table.values) for name, table in tables.items()},
            {name: table.metadata.get("gone", none) for name, table in tables.items()},
        )


def _manifest(path: Path) -> Manifest | None:
    """Return what a version consists of; None where it is damaged, was removed, or is of a newer heterps."""
    try:
        return read_manifest(path)
    except (CorruptCheckpoint, RunError, StorageError):
        return None
