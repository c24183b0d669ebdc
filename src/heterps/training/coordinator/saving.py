"""Saver: writes the checkpoints of a job, each at a cut, with all rows or with those that changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from heterps.checkpoint.finished import read_manifest
from heterps.config import Checkpoint
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.run.folder import Run


class Saver:
    """Checkpoints of `model` in the folder of `run`.

    The first has all rows, and so has every `full_every`-th, and one for which a server does not know what changed: it
    is new, its rows have moved, or too many went. The others have the rows that changed since the one before.
    """

    def __init__(self, model: CoordinatorModel, run: Run, rules: Checkpoint) -> None:
        self._model, self._run, self._rules = model, run, rules
        self._number = 0  # of the last attempt, by which tables know versions
        self._last: tuple[int, Path] | None = None  # number and path of the last one that was written
        self._num_since_full = 0

    def save(self, clock: int, samples: int, progress: dict[str, Any], spare: int | None) -> Path:
        """Write a checkpoint and return its path; StorageError where the disk refuses, after which all rows are due."""
        number, parent = self._last or (0, None)
        if self._num_since_full + 1 >= self._rules.full_every or parent is None or not parent.is_dir():
            number = 0
        self._number, self._last = self._number + 1, None
        changes = None
        if self._rules.full_every > 1:
            changes = self._model.changes(self._number, number, "checkpoints")
        snapshot = self._model.snapshot(clock, samples, progress, in_place=True, changes=changes)
        is_full = changes is None or not changes.since
        if not is_full:
            assert parent is not None
            snapshot = replace(snapshot, parent=parent.name, parent_xxh3=read_manifest(parent).xxh3)
        path = self._run.save_checkpoint(snapshot, self._rules.keep, spare)
        self._last = self._number, path
        self._num_since_full = 0 if is_full else self._num_since_full + 1
        return path
