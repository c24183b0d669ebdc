"""JobFolder: what a simulated job writes to the real disk: versions, and checkpoints from which a later job goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heterps.checkpoint import Snapshot, load_latest, save
from heterps.checkpoint.finished import finished
from heterps.config import Job
from heterps.errors import StorageError
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.publishing import Publisher
from heterps.training.coordinator.saving import CheckpointChain

CHECKPOINTS = "checkpoints"


class JobFolder:
    """The folder of a job whose coordinator has `model`; None: there is no disk, and all that is written is lost."""

    def __init__(self, job: Job, folder: Path | None, model: CoordinatorModel) -> None:
        self._keep, self._folder = job.checkpoint.keep, folder
        self._chain = CheckpointChain(model, job.checkpoint.full_every)
        self._publisher = None if folder is None else Publisher(model, folder)

    def save(self, clock: int, samples: int, progress: dict[str, Any]) -> StorageError | None:
        """Write a checkpoint; return why that failed, if it did."""
        if self._folder is None:
            return None
        try:
            snapshot = self._chain.take(clock, samples, progress, in_place=False)
            self._chain.written(save(self._folder / CHECKPOINTS, snapshot, self._keep))
        except StorageError as error:
            return error
        return None

    def latest(self) -> Snapshot | None:
        """The newest good checkpoint; None where there is none yet."""
        if self._folder is None or not finished(self._folder / CHECKPOINTS):
            return None
        return load_latest(self._folder / CHECKPOINTS)

    def publish(self, clock: int, samples: int) -> str | None:
        """Write a version for those who follow the job; return why that failed, if it did."""
        return None if self._publisher is None else self._publisher.publish(clock, samples)
