"""Saver: writes the checkpoints of a job, each of one cut, with all rows or with those that changed.

at a cut    begin: what a table has now is kept for the checkpoint, however it changes from then on
afterwards  a thread waits for those who write rows, and ends the checkpoint, while training goes on
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from heterps import background
from heterps.checkpoint import Snapshot
from heterps.checkpoint.finished import read_manifest
from heterps.config import Checkpoint
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.run.folder import Run

GRACE_S = 10.0
"""How long a job that ends with an error waits for the checkpoint that is being written."""


class CheckpointChain:
    """Takes the snapshots of `model` for its checkpoints, with all rows or with those that changed.

    The first has all rows, and so has every `full_every`-th, and one for which a server does not know what changed: it
    is new, its rows have moved, or too many went. The others have the rows that changed since the one before.
    """

    def __init__(self, model: CoordinatorModel, full_every: int) -> None:
        self._model, self._full_every = model, full_every
        self._number = 0  # of the last attempt, by which tables know versions
        self._last: tuple[int, Path] | None = None  # number and path of the last one that was written
        self._num_since_full = 0
        self._is_full = True  # the last one that was taken

    def take(self, clock: int, samples: int, progress: dict[str, Any], *, in_place: bool) -> Snapshot:
        """Return the snapshot for the next checkpoint. Until it was `written` all rows are due."""
        number, parent = self._last or (0, None)
        if self._num_since_full + 1 >= self._full_every or parent is None or not parent.is_dir():
            number = 0
        self._number, self._last = self._number + 1, None
        changes = None
        if self._full_every > 1:
            changes = self._model.changes(self._number, number, "checkpoints")
        snapshot = self._model.snapshot(clock, samples, progress, in_place=in_place, changes=changes)
        self._is_full = changes is None or not changes.since
        if self._is_full:
            return snapshot
        assert parent is not None
        return replace(snapshot, parent=parent.name, parent_xxh3=read_manifest(parent).xxh3)

    def written(self, path: Path) -> None:
        """Take the path of the checkpoint with the last snapshot; the next one may have what changed since then."""
        self._last = self._number, path
        self._num_since_full = 0 if self._is_full else self._num_since_full + 1


class Saver:
    """Writes checkpoints of `model` to the folder of `run`, by `rules`."""

    def __init__(self, model: CoordinatorModel, run: Run, rules: Checkpoint) -> None:
        self._model, self._run, self._rules = model, run, rules
        self._chain = CheckpointChain(model, rules.full_every)
        self._saving: Future[Path] | None = None
        self._began_s = 0.0

    def begin(self, clock: int, samples: int, progress: dict[str, Any], spare: int | None) -> None:
        """Begin a checkpoint of the job as it is; StorageError where the disk refuses, after which all rows are due.

        The one before must have `ended`. Servers are compared with their mirrors before, if they have some:
        MirrorDiffers where two are not equal.
        """
        self._model.client.compare_mirrors()
        self._began_s = time.perf_counter()
        self._saving = background.start(self._begin(clock, samples, progress, spare), "heterps-checkpoint")

    def ended(self, timeout_s: float) -> tuple[str, float] | None:
        """Return the path of a checkpoint that was written since the last call, and the seconds that it took.

        None where none was, within this time. StorageError where the disk has refused.
        """
        if self._saving is None or not wait([self._saving], timeout_s).done:
            return None
        saving, self._saving = self._saving, None
        return str(saving.result()), time.perf_counter() - self._began_s

    def close(self) -> None:
        """Let a checkpoint that is being written come to its end, if it does so soon; otherwise it is given up.

        For a job that ends with an error: its servers may have gone.
        """
        if self._saving is not None and not wait([self._saving], GRACE_S).done:
            self._model.client.close()  # so that nobody waits for them
            self._saving.exception()

    def _begin(self, clock: int, samples: int, progress: dict[str, Any], spare: int | None) -> Callable[[], Path]:
        snapshot = self._chain.take(clock, samples, progress, in_place=True)
        finish = self._run.begin_checkpoint(snapshot, self._rules.keep, spare)

        def end() -> Path:
            path = finish()
            self._chain.written(path)
            return path

        return end
