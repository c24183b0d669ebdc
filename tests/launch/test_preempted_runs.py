"""Processes of a run that are told to leave: what they have is kept, nobody goes back, and it counts as no failure."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from command import heterps, started
from ends import assert_same_tables, uses_of_rows, wait_until
from test_replaced_workers import BATCH, EPOCHS, NUM_ROWS, Watcher, changed, job, processes_of

from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.launch import train
from heterps.processes import Child

__all__ = ["job"]  # a fixture
pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")


class Slow(Watcher):
    """Steps are slow until what happened was made good."""

    def stepped(self, *args: object) -> None:
        if not self.changes:
            time.sleep(0.2)
        super().stepped(*args)


@pytest.mark.parametrize("sync", ["bsp", pytest.param("ssp:2", marks=pytest.mark.slow)])
def test_a_server_without_a_mirror_that_is_told_to_leave_is_saved_first(
    tmp_path: Path, job: Job, children: dict[str, list[Child]], sync: str
) -> None:
    watched = Slow(lambda: os.kill(children["server-0"][-1].pid, signal.SIGTERM), 3 * BATCH)
    job = changed(job, sync=sync, servers={"count": 2}, workers={"channel": "ipc", "replacements": 0})
    done = train(job, "run", observer=watched).summary
    (warning,) = watched.warnings
    assert warning.startswith("server-0 has to leave")
    assert warning.endswith("the job is saved, and goes on with others")
    first, again = watched.starts
    assert first == 0
    assert again >= 3 * BATCH, "all that was done until then is in the checkpoint"
    assert [len(children[name]) for name in ("server-0", "server-1", "worker-1.0")] == [2, 2, 2]
    assert (done["status"], done["samples"], done["repeated_samples"]) == ("completed", EPOCHS * NUM_ROWS, 0)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS
    if sync == "bsp":
        clean = changed(job, workers={"channel": "memory"}, servers={"count": 2})
        train(clean, "clean")
        assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))


def test_a_server_with_a_mirror_that_is_told_to_leave_is_replaced_by_it_though_none_may_be_lost(
    tmp_path: Path, job: Job, children: dict[str, list[Child]]
) -> None:
    def leave() -> None:
        for name in ("server-0", "server-1.1"):
            os.kill(children[name][-1].pid, signal.SIGTERM)

    watched = Slow(leave, 8 * BATCH)
    servers = {"replicas": 1, "count": 2}
    job = changed(job, servers=servers, workers={"channel": "ipc", "replacements": 0})
    done = train(job, "run", observer=watched).summary
    texts = sorted(text for text in watched.warnings)
    assert [text.split()[0] for text in texts] == ["server-0", "server-1.1"], texts
    assert all("leaves, because its process was told to end" in text for text in texts), "which is no failure"
    assert watched.starts == [0]
    assert (done["restarts"], done["samples"], done["repeated_samples"]) == (0, EPOCHS * NUM_ROWS, 0)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS


def test_all_processes_that_are_told_to_end_at_once_save_and_the_next_command_goes_on(tmp_path: Path, job: Job) -> None:
    """As a service manager does that signals every process of a run."""
    data = job.data.model_dump(mode="json") | {"epochs": 200}
    (tmp_path / "long.yaml").write_text(changed(job, data=data).model_dump_json(exclude_none=True))
    run = tmp_path / "run"
    with started("train", "long.yaml", "--run", "run", cwd=tmp_path) as process:
        wait_until(lambda: process.poll() is None and (run / "metrics.jsonl").exists(), "the run trains")
        for module in ("server_process", "worker_process"):
            for one in processes_of(process.pid, module):
                os.kill(one, signal.SIGTERM)
        os.kill(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 143, out
    stopped = json.loads((run / "summary.json").read_text())
    assert stopped["status"] == "stopped by SIGTERM"
    ended = heterps("train", "long.yaml", "--run", "run", "--resume", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"resumed at {stopped['samples']:,} of" in " ".join(ended.stdout.split()), "nothing was lost"
    assert uses_of_rows(NUM_ROWS, run) == [200] * NUM_ROWS


def test_a_command_that_cannot_save_in_time_ends_by_itself_and_says_so(tmp_path: Path, job: Job) -> None:
    """Its worker stands still, so that the running step never ends."""
    data = job.data.model_dump(mode="json") | {"epochs": 200}
    made = changed(job, data=data, checkpoint={"grace_s": 1.5, "every_samples": BATCH})
    (tmp_path / "long.yaml").write_text(made.model_dump_json(exclude_none=True))
    run = tmp_path / "run"
    with started("train", "long.yaml", "--run", "run", cwd=tmp_path) as process:
        wait_until(lambda: process.poll() is None and any(run.glob("checkpoints/0*")), "the run has saved")
        os.kill(processes_of(process.pid, "worker_process")[0], signal.SIGSTOP)
        os.kill(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 143, out
    assert "did not save within 1.5 s, which is checkpoint.grace_s" in " ".join(out.split())
