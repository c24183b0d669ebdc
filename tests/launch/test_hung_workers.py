"""Worker processes that hang beyond their deadline and go on after they were replaced: they are refused by servers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from ends import assert_same_tables, uses_of_rows, wait_until
from test_replaced_workers import BATCH, NUM_ROWS, SLOW_S, Watcher, changed, job

from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.launch import train
from heterps.processes import Child

__all__ = ["job"]  # a fixture
pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
DEADLINE_S = 3.0
STOP_AT, EPOCHS = 8, 30
SLOW = ["bsp", "asp", "dssp:1:4"]
MOST_STEPS = 2 * (1 + 4 + 1) + 2
"""With dssp:1:4 a worker goes from furthest behind a silent one to furthest ahead, and a push each is under way."""


class Hangs(Watcher):
    """Stops a worker for good, and lets it go on once another has its place. Counts steps before and after it is lost.

    Nobody ends the process meanwhile, as nobody can who does not reach its machine. Steps are slow until it has ended
    by itself: a run that is over refuses nobody.
    """

    def __init__(self, children: dict[str, list[Child]], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(self._stop, STOP_AT * BATCH)
        self._children, self._monkeypatch = children, monkeypatch
        self.noticed_s, self.while_silent, self.while_missing = 0.0, 0, 0
        self.stopped_at: float | None = None

    @property
    def zombie(self) -> Child:
        return self._children["worker-1.1"][0]

    def _stop(self) -> None:
        self._monkeypatch.setattr(self.zombie, "stop", lambda _deadline_s: None)
        os.kill(self.zombie.pid, signal.SIGSTOP)
        self.stopped_at = time.monotonic()

    def stepped(self, *args: object) -> None:
        if self.stopped_at is not None and not self.warnings:
            self.while_silent += 1
            time.sleep(SLOW_S / 10)
        elif self.warnings and not self.changes:
            self.while_missing += 1
        elif self.changes and self.zombie.is_running:
            time.sleep(SLOW_S / 10)
        super().stepped(*args)

    def warned(self, message: str) -> None:
        super().warned(message)
        self.noticed_s = time.monotonic() - (self.stopped_at or 0.0)

    def changed(self, what: str) -> None:
        super().changed(what)
        os.kill(self.zombie.pid, signal.SIGCONT)


@pytest.mark.parametrize("sync", ["ssp:2", *(pytest.param(sync, marks=pytest.mark.slow) for sync in SLOW)])
def test_a_worker_that_hangs_is_replaced_and_can_do_nothing_when_it_goes_on(
    tmp_path: Path, job: Job, children: dict[str, list[Child]], monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    hangs = Hangs(children, monkeypatch)
    data = job.data.model_dump() | {"epochs": EPOCHS}
    job = changed(job, sync=sync, data=data)
    workers = {"channel": "ipc", "deadline_s": DEADLINE_S}
    try:
        done = train(changed(job, workers=workers), "run", observer=hangs).summary
        wait_until(lambda: not hangs.zombie.is_running, "the one that was replaced ends by itself")
        ended = hangs.zombie.ended
    finally:
        Child.close(hangs.zombie)
    (warning,) = hangs.warnings
    assert warning.startswith("the coordinator has waited 3 s for worker-1.1: ")
    assert "It is replaced" in warning
    assert "is back after" in hangs.changes[0]
    assert DEADLINE_S - 0.5 < hangs.noticed_s < 2 * DEADLINE_S + 2.0
    assert ended is not None
    assert "lives its life 2 already; its life 1 must end" in ended
    assert (hangs.while_missing > 0) == (sync != "bsp"), "the others go on, or wait for it"
    assert (hangs.while_silent > MOST_STEPS) == (sync == "asp"), "none waits for a worker that is only silent"
    assert (done["status"], done["samples"]) == ("completed", EPOCHS * NUM_ROWS)
    assert (done["restarts"], done["recoveries"]) == (0, 1)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS
    if sync == "bsp":
        train(changed(job, workers={"channel": "memory"}), "clean")
        assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))
