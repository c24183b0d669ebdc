"""Worker processes that are killed while a run goes on: they are replaced, nobody goes back, and nothing is lost."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from command import processes_of, started
from ends import assert_same_tables, uses_of_rows, wait_until
from test_restarted_runs import Killer
from tiny import JOB, write_tiny

from heterps.checkpoint import load_latest
from heterps.config import Job, load_job
from heterps.launch import train
from heterps.processes import Child

pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
NUM_ROWS, BATCH, EPOCHS = 160, 16, 6
SLOW_S = 0.5


class Watcher(Killer):
    """Notes also who is back. Until then steps are slow, so that the others are not done with the job before that."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.changes: list[str] = []

    def stepped(self, *args: Any) -> None:
        super().stepped(*args)
        if len(self.changes) < len(self.warnings):
            time.sleep(SLOW_S)

    def changed(self, what: str) -> None:
        self.changes.append(what)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Two workers in one stage. Slot t has another id in every row, so that its uses say how often that was trained."""
    write_tiny(tmp_path / "train.parquet", NUM_ROWS, t=list(range(1000, 1000 + NUM_ROWS)))
    write_tiny(tmp_path / "test.parquet", 20)
    (tmp_path / "job.yaml").write_text(JOB)
    job = load_job("job.yaml")
    return changed(job, data=job.data.model_dump() | {"epochs": EPOCHS}, launcher="local", threads=2)


def changed(job: Job, **fields: object) -> Job:
    return Job.model_validate(job.model_dump() | fields)


@pytest.mark.parametrize(
    "sync", ["bsp", "ssp:2", pytest.param("asp", marks=pytest.mark.slow), pytest.param("dssp", marks=pytest.mark.slow)]
)
def test_a_worker_that_is_killed_is_replaced_and_every_batch_is_trained_once(
    tmp_path: Path, job: Job, children: dict[str, list[Child]], sync: str
) -> None:
    killer = Watcher(lambda: os.kill(children["worker-1.1"][-1].pid, signal.SIGKILL), 3 * BATCH)
    done = train(changed(job, sync=sync, workers={"channel": "ipc"}), "run", observer=killer).summary
    (warning,) = killer.warnings
    assert warning.startswith("worker-1.1 (stage 1, process ")
    assert re.search(
        r"ended with exit code -9 \(SIGKILL\); it was last heard of \d\.\d s before\. It is replaced, and the others",
        warning,
    )
    assert killer.starts == [0], "nobody began again"
    assert "worker-1.1 is back after" in killer.changes[0]
    assert [len(children[name]) for name in ("worker-1.0", "worker-1.1", "server-0")] == [1, 2, 1]
    assert (done["status"], done["samples"]) == ("completed", EPOCHS * NUM_ROWS)
    assert (done["restarts"], done["recoveries"]) == (0, 1)
    assert done["repeated_samples"] <= BATCH
    died, back, *_ = map(json.loads, Path("run/events.jsonl").read_text().splitlines())
    assert (died["event"], died["text"]) == ("warned", warning)
    assert (back["event"], back["text"]) == ("changed", killer.changes[0])
    assert "Faults, recoveries and changes" in Path("run/report.html").read_text()
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS
    if sync == "bsp":
        clean = train(changed(job, sync=sync, workers={"channel": "memory"}), "clean").summary
        assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))
        assert (done["log_loss"], done["auc"]) == (clean["log_loss"], clean["auc"])


def test_through_the_command_line_a_killed_worker_is_told_in_a_line_and_counted(tmp_path: Path, job: Job) -> None:
    data = job.data.model_dump(mode="json") | {"epochs": 200}
    text = changed(job, data=data).model_dump_json(exclude_none=True)
    (tmp_path / "long.yaml").write_text(text)
    run = tmp_path / "run"
    with started("train", "long.yaml", "--run", "run", cwd=tmp_path) as process:
        wait_until(lambda: process.poll() is None and (run / "metrics.jsonl").exists(), "the run trains")
        os.kill(processes_of(process.pid, "worker_process")[0], signal.SIGKILL)
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 0, out
    words = " ".join(out.split())
    assert "SIGKILL" in words
    assert "It is replaced, and the others wait for it" in words
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["samples"], summary["recoveries"], summary["restarts"]) == (200 * NUM_ROWS, 1, 0)
    assert uses_of_rows(NUM_ROWS, run) == [200] * NUM_ROWS


def test_without_replacements_a_killed_worker_ends_the_run(
    tmp_path: Path, job: Job, children: dict[str, list[Child]]
) -> None:
    from heterps.errors import PeerLost

    killer = Watcher(lambda: os.kill(children["worker-1.1"][-1].pid, signal.SIGKILL), 3 * BATCH)
    workers = {"channel": "ipc", "replacements": 0}
    with pytest.raises(PeerLost, match=r"worker-1\.1 .*SIGKILL"):
        train(changed(job, workers=workers), "run", observer=killer)


def test_a_worker_that_is_told_to_leave_is_no_failure(
    tmp_path: Path, job: Job, children: dict[str, list[Child]]
) -> None:
    """Two leave, where one may be lost. It ends what it does, and the others go on."""
    leaving = iter(["worker-1.0", "worker-1.1"])
    killer = Watcher(lambda: os.kill(children[next(leaving)][-1].pid, signal.SIGTERM), 3 * BATCH, 30 * BATCH)
    workers = {"channel": "ipc", "replacements": 1, "backoff_s": 100.0}
    done = train(changed(job, sync="ssp:2", workers=workers), "run", observer=killer).summary
    assert [warning.split()[0] for warning in killer.warnings] == ["worker-1.0", "worker-1.1"]
    assert all("SIGTERM" in warning for warning in killer.warnings)
    assert (done["recoveries"], done["restarts"], done["samples"]) == (2, 0, EPOCHS * NUM_ROWS)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:2", "dssp:1:4"])
def test_whoever_dies_when_and_how_every_batch_is_trained_once(
    tmp_path: Path, job: Job, children: dict[str, list[Child]], monkeypatch: pytest.MonkeyPatch, sync: str, seed: int
) -> None:
    """Three deaths at random moments, of any worker, by any signal; every other run has a process in reserve."""
    monkeypatch.setattr("heterps.launch.standby.AFTER_S", 0.0 if seed % 2 else 1e9)
    draw = random.Random(seed)
    epochs = 20
    moments = sorted(draw.sample(range(2, epochs * NUM_ROWS // BATCH - 2), 3))

    def kill() -> None:
        name, number = draw.choice(["worker-1.0", "worker-1.1"]), draw.choice([signal.SIGKILL, signal.SIGTERM])
        (running,) = [child for made in children.values() for child in made if child.name == name and child.is_running]
        os.kill(running.pid, number)

    long = changed(job, data=job.data.model_dump() | {"epochs": epochs}, sync=sync)
    killer = Watcher(kill, *(BATCH * moment for moment in moments))
    done = train(changed(long, workers={"channel": "ipc", "backoff_s": 0.1}), "run", observer=killer).summary
    assert (done["status"], done["samples"], done["restarts"]) == ("completed", epochs * NUM_ROWS, 0)
    assert 0 < done["recoveries"] <= len(killer.warnings), "one that dies again before it is back is missing once"
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [epochs] * NUM_ROWS
    if sync == "bsp":
        train(changed(long, workers={"channel": "memory"}), "clean")
        assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))
