"""Where a run begins: with initial values, from a checkpoint, or with what the servers of a dead coordinator hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from heterps.checkpoint import load
from heterps.config import Job
from heterps.data.leases import Leases
from heterps.data.reader import Reader
from heterps.training.coordinator.journal import Decisions, Journal, JournalContents, ServerPlace
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.coordinator.positions import (
    begins_other_data,
    checkpoint_progress,
    first_leases,
    restored_leases,
)
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer
from heterps.training.run.progress import RunProgress
from heterps.training.run.start import job_start


class Begun(NamedTuple):
    """What a coordinator begins with: batches to hand out, updates so far, what was paid (None: it is not known)."""

    leases: Leases
    clock: int
    usd: float | None
    resumed: Decisions | None = None  # of a coordinator that died
    life: int = 1  # how many coordinators the job has had
    news: str = ""  # to be told once training starts

    def journal(self, folder: Path, job: str, place: ServerPlace, warn: Callable[[str], None]) -> Journal:
        """The journal of this coordinator, which goes on from that of the one before; see Journal."""
        journal = Journal(folder, self.life, job, place, warn)
        if self.resumed is not None:
            journal.go_on(self.resumed)
        return journal


class Origin:
    """Brings the model on the servers, and `progress`, to where a run begins."""

    def __init__(
        self, job: Job, run: Run, reader: Reader, model: CoordinatorModel, progress: RunProgress, observer: Observer
    ) -> None:
        self._job, self._run, self._reader, self._model = job, run, reader, model
        self._progress, self._observer = progress, observer

    def begin(self) -> Begun:
        """Start with initial values, or from what the job says: as the run's own first checkpoint, at clock 0."""
        job, run, model = self._job, self._run, self._model
        leases = first_leases(job, self._reader)
        if job.start is None:
            model.fill()
            return Begun(leases, 0, 0.0)
        state = checkpoint_progress(job, leases, self._reader, self._progress.state(), 0.0)
        snapshot, taken = job_start(job, model.model, model.tables, state)
        model.restore(load(run.save_checkpoint(snapshot, job.checkpoint.keep)))
        run.write_json("start.json", taken.fields())
        self._observer.began(str(taken))
        return Begun(leases, 0, 0.0)

    def restore(self) -> Begun:
        """Go on from the checkpoint of the run; from the start where it was ended before its first."""
        run, progress = self._run, self._progress
        snapshot = run.load_checkpoint()
        if snapshot is None:
            self._observer.warned(f"{run.folder} has no checkpoint yet, so its training starts from the beginning.")
            progress.restarts = run.begun_again(0)
            run.rewind_metrics(0)
            return self.begin()
        self._model.restore(snapshot)
        progress.restore(snapshot.samples, snapshot.progress)
        progress.restarts = run.begun_again(progress.restarts)
        run.rewind_metrics(progress.interval_started)  # lines after it are of intervals that are open again
        if begins_other_data(self._job, self._reader, snapshot.progress):
            progress.begin_other_data()
        leases = restored_leases(self._job, self._reader, snapshot.progress)
        return Begun(leases, snapshot.clock, snapshot.progress.get("usd"))

    def take_over(self, found: JournalContents) -> Begun:
        """Go on with what servers hold, by the journal of a coordinator that died."""
        taken = found.restore(self._job, self._reader, self._progress)
        self._run.rewind_metrics(self._progress.interval_started)
        repeated = len(taken.decisions.under_way)
        news = (
            "the process of this run was killed, and its servers were still there: training goes on with what they "
            f"hold, from {self._progress.samples:,} samples on, and repeats {repeated} of its batches"
        )
        return Begun(taken.leases, taken.clock, taken.usd, taken.decisions, found.head.life, news)
