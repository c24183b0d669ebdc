"""Quarantine: the rows of batches that were skipped, in RUN/quarantine.jsonl, so that a person can look at them.

    batch 12 of epoch 0 was skipped --> [1] its rows are read again, with their places in the files
                                        [2] the model as it is says which of them have no finite output or loss
                                        [3] a line for each of these; for all, where no single one can be told

The coordinator writes it, because it knows of every batch. A row that the file has already, as after a resume, is not
written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from heterps.config import Job
from heterps.data.places import Places, RowPlace
from heterps.data.reader import open_reader
from heterps.errors import DataError, ModelError, StorageError
from heterps.training.coordinator.flow import SkippedBatch
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.run.folder import Run

FILE = "quarantine.jsonl"
MOST_ROWS = 1000
"""Number of rows in the file. Further ones are not written."""

_Identity = tuple[int, int, str, int, int]


class Quarantine:
    """Writes the rows of skipped batches of a job to the folder of its run; `warn` is told where that cannot be.

    Training does not depend on it: where the rows cannot be read or written, the batch is skipped all the same.
    """

    def __init__(
        self, job: Job, run: Run, model: CoordinatorModel, opened: ExitStack, warn: Callable[[str], None]
    ) -> None:
        self._job, self._run, self._model, self._opened, self._warn = job, run, model, opened, warn
        self._is_on = job.on_not_finite == "quarantine"
        self._places: Places | None = None
        self._known = _read(run) if self._is_on else set()

    def add(self, batch: SkippedBatch) -> None:
        """Write the rows of a batch that was skipped, if the job says so, as far as there is room."""
        if not self._is_on or len(self._known) >= MOST_ROWS:
            return
        try:
            self._write(batch)
        except (DataError, StorageError) as error:
            self._is_on = False
            self._warn(f"rows of skipped batches are no longer written to {FILE}, training goes on. {error}")

    def _write(self, batch: SkippedBatch) -> None:
        if self._places is None:
            self._places = Places(open_reader(self._job))
            self._opened.callback(self._places.close)
        samples, places = self._places.find(batch.epoch, batch.batch)  # [1]
        bad: dict[int, str] = {}
        with suppress(ModelError):
            bad = self._model.not_finite(samples)  # [2]
        for number in bad or range(len(places)):  # [3]
            line = _line(batch, places[number], bad.get(number))
            if (identity := _identity(line)) in self._known:
                continue
            self._run.add_line(FILE, line)
            self._known.add(identity)
            if len(self._known) == MOST_ROWS:
                self._warn(f"{FILE} has {MOST_ROWS:,} rows: further rows of skipped batches are only counted.")
                return


def _line(batch: SkippedBatch, place: RowPlace, value: str | None) -> dict[str, Any]:
    return {"epoch": batch.epoch, "batch": batch.batch, **place._asdict(), "value": value, "why": batch.why}


def _identity(line: dict[str, Any]) -> _Identity:
    return line["epoch"], line["batch"], line["file"], line["row_group"], line["row"]


def _read(run: Run) -> set[_Identity]:
    """The rows that the file has; lines that a crash has cut off are left out."""
    path = run.folder / FILE
    found = set()
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError, KeyError, TypeError):
            found.add(_identity(json.loads(text)))
    return found
