"""Publisher: writes versions of a job's model for those who follow the run, each at a cut."""

from __future__ import annotations

from pathlib import Path

from heterps.checkpoint.stream import StreamWriter
from heterps.errors import NotFinite, StorageError
from heterps.training.coordinator.model import CoordinatorModel


class Publisher:
    """Versions of `model` in the stream of the run in `run_folder`."""

    def __init__(self, model: CoordinatorModel, run_folder: Path) -> None:
        self._model, self._writer = model, StreamWriter(run_folder)
        self._number = 0  # of the last attempt, by which tables know versions
        self._last = 0  # of the last version that was written
        self._told = ""

    def publish(self, clock: int, samples: int) -> str | None:
        """Write the model as it is: what changed since the last version, or all rows where that is not known.

        Returns why that failed, if it did, once for each reason. Training goes on in any case.
        """
        self._number += 1
        parent = self._writer.parent
        changes = self._model.changes(self._number, 0 if parent is None else self._last, "followers")
        try:
            self._writer.write(self._model.version(clock, samples, changes, parent))
        except (StorageError, NotFinite) as error:
            text, self._told = ("" if str(error) == self._told else str(error)), str(error)
            return text or None
        self._last = self._number
        return None
