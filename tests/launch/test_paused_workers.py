"""Real worker processes of which one is paused now and then: bounds hold, and every batch is trained once."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from command import heterps_here
from ends import uses_of_rows
from policy_rules import Rules, hold_of_run
from tiny import JOB, write_tiny

from heterps.config import Job, load_job
from heterps.launch import train
from heterps.processes import Child
from heterps.training.run.observer import Observer

pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
NUM_ROWS, BATCH, EPOCHS = 160, 16, 12
NUM_BATCHES = EPOCHS * NUM_ROWS // BATCH


class Pauses(Observer):
    """Pauses the second worker for `pause_s` after every so many steps; keeps losses and changes."""

    def __init__(self, children: dict[str, list[Child]], every: int, pause_s: float) -> None:
        self._children, self._every, self._pause_s = children, every, pause_s
        self._timers: list[threading.Timer] = []
        self.losses: list[float] = []
        self.changes: list[str] = []

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        self.losses.append(loss)
        if len(self.losses) % self._every == 0 and len(self.losses) < NUM_BATCHES - self._every:
            pid = self._children["worker-1.1"][0].pid
            os.kill(pid, signal.SIGSTOP)
            self._timers.append(threading.Timer(self._pause_s, os.kill, (pid, signal.SIGCONT)))
            self._timers[-1].start()

    def changed(self, what: str) -> None:
        self.changes.append(what)

    def end(self) -> None:
        for timer in self._timers:
            timer.join()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Slot t has another id in every row, so that its uses say how often the row was trained on."""
    write_tiny(tmp_path / "train.parquet", NUM_ROWS, t=list(range(1000, 1000 + NUM_ROWS)))
    write_tiny(tmp_path / "test.parquet", 20)
    (tmp_path / "job.yaml").write_text(JOB)
    job = load_job("job.yaml")
    return changed(job, data=job.data.model_dump() | {"epochs": EPOCHS})


def changed(job: Job, **fields: object) -> Job:
    return Job.model_validate(job.model_dump() | fields)


def train_with_pauses(job: Job, run: Path, pauses: Pauses) -> None:
    try:
        outcome = train(job, run, observer=pauses)
    finally:
        pauses.end()
    assert outcome.summary["samples"] == EPOCHS * NUM_ROWS
    assert len(pauses.losses) == NUM_BATCHES


CASES = [("dssp:1:4", Rules(1, 4, "next", "all")), ("asp", Rules(float("inf"))), ("ssp:2", Rules(2))]
SLOW = [
    ("ssp:0", Rules(0)),
    ("dssp:1:4+fastest+lower", Rules(1, 4, "lower", "fastest")),
    ("dssp:1:4+elapsed", Rules(1, 4, "next", "all")),
]


@pytest.mark.parametrize(("sync", "rules"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)])
def test_leads_stay_within_bounds_and_every_batch_is_trained_once(
    tmp_path: Path, job: Job, children: dict[str, list[Child]], sync: str, rules: Rules
) -> None:
    workers = {"channel": "ipc", "lanes": 2}
    paused = changed(job, launcher="local", threads=2, sync=sync, workers=workers)
    train_with_pauses(paused, tmp_path / "run", Pauses(children, every=20, pause_s=0.1))
    assert hold_of_run(tmp_path / "run", rules) == NUM_BATCHES
    lines = (tmp_path / "run/traces/stage-1.jsonl").read_text().splitlines()[1:]
    assert max(json.loads(line)["lead"] for line in lines) > rules.lower or sync == "asp", "nobody was held back"
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS
    advised = heterps_here("simulate", "--from", "run", "--advise", "--seeds", "2", "--json", cwd=tmp_path)
    assert advised.returncode == 0, advised.stderr
    shown = json.loads(advised.stdout)
    assert (shown["own"], shown["lanes"]) == (paused.sync.label, 2)


@pytest.mark.slow
def test_a_worker_that_is_paused_in_every_round_gets_fewer_samples_and_the_losses_are_those_of_one_process(
    tmp_path: Path, job: Job, children: dict[str, list[Child]]
) -> None:
    alone = Pauses(children, every=10**9, pause_s=0.0)
    train(changed(job, launcher="inline"), tmp_path / "alone", observer=alone)
    workers = {"channel": "ipc", "shares": "fitted"}
    pauses = Pauses(children, every=1, pause_s=0.06)
    train_with_pauses(changed(job, launcher="local", threads=2, workers=workers), tmp_path / "run", pauses)
    assert pauses.losses == pytest.approx(alone.losses, rel=1e-3)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS
    words = pauses.changes[0].replace(",", "").split()
    fast, slow = int(words[3]), int(words[4])
    assert fast + slow == BATCH
    assert slow < BATCH / 2 < fast, pauses.changes
