"""The command of a run is killed: its servers wait, and `--resume` goes on with what they hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import heterps, heterps_here, started
from ends import assert_same_tables, uses_of_rows, wait_until
from leaks import marked_processes
from test_replaced_workers import NUM_ROWS, changed, job, processes_of

from heterps.checkpoint import load_latest
from heterps.config import Job
from heterps.training.coordinator.journal import FILE

__all__ = ["job"]  # a fixture
pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
EPOCHS = 60
RESUME = ("train", "long.yaml", "--run", "run", "--resume")
POLICIES = ["bsp", "ssp:2", pytest.param("asp", marks=pytest.mark.slow), pytest.param("dssp", marks=pytest.mark.slow)]


@pytest.fixture
def long(tmp_path: Path, job: Job):
    def write(epochs: int = EPOCHS, **fields: Any) -> Job:
        data = job.data.model_dump(mode="json") | {"epochs": epochs}
        made = changed(job, data=data, workers={"channel": "ipc"}, **fields)
        (tmp_path / "long.yaml").write_text(made.model_dump_json(exclude_none=True))
        return made

    return write


def kill_when_training(folder: Path, *words: str, lines: int = 1) -> None:
    """Start a command, and kill it once so many lines of metrics are there."""
    metrics = folder / "run" / "metrics.jsonl"
    with started(*words, cwd=folder) as process:

        def has_trained() -> bool:
            assert process.poll() is None, process.communicate()[0]
            return metrics.exists() and len(metrics.read_text().splitlines()) >= lines

        wait_until(has_trained, "the run trains")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def summary_of(folder: Path, ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return summary


@pytest.mark.parametrize("sync", POLICIES)
def test_a_killed_run_goes_on_with_what_its_servers_hold(tmp_path: Path, long: Any, sync: str) -> None:
    job = long(sync=sync)
    kill_when_training(tmp_path, "train", "long.yaml", "--run", "run")
    assert not (tmp_path / "run" / "checkpoints").exists(), "there is none to go back to"
    kill_when_training(tmp_path, *RESUME, lines=len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) + 1)
    ended = heterps(*RESUME, cwd=tmp_path)
    done = summary_of(tmp_path, ended)
    assert "its servers were still there: training goes on with what they hold" in " ".join(ended.stdout.split())
    assert (done["status"], done["samples"]) == ("completed", EPOCHS * NUM_ROWS)
    assert (done["restarts"], done["recoveries"]) == (0, 2), "it was killed twice, and nobody went back"
    assert done["repeated_samples"] <= 2 * 2 * job.data.batch_size
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS, "every batch is in the tables once"
    assert not (tmp_path / "run" / FILE).exists()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert sum("its servers were still there" in event["text"] for event in events) == 2
    if sync == "bsp":
        assert heterps("train", "long.yaml", "--run", "clean", cwd=tmp_path).returncode == 0
        assert_same_tables(load_latest("run/checkpoints"), load_latest("clean/checkpoints"))
        assert done["auc"] == json.loads(Path("clean/summary.json").read_text())["auc"], "of the test set"


@pytest.mark.parametrize("sync", ["bsp", pytest.param("ssp:2", marks=pytest.mark.slow)])
def test_servers_with_mirrors_wait_too_and_have_mirrors_again(tmp_path: Path, long: Any, sync: str) -> None:
    """A server is killed after the first command, one that was a mirror until then, and a mirror before the second."""
    epochs = 300
    long(epochs, sync=sync, servers={"replicas": 1, "count": 2}, metrics_every_samples=640)  # the pipe holds 27 lines
    metrics, events = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "events.jsonl"
    with started("train", "long.yaml", "--run", "run", cwd=tmp_path) as process:

        def has(file: Path, lines: int, words: str = "") -> bool:
            assert process.poll() is None, process.communicate()[0]
            return file.exists() and len(file.read_text().splitlines()) >= lines and words in file.read_text()

        wait_until(lambda: has(metrics, 4), "mirrors have all")
        os.kill(processes_of(process.pid, "server_process")[0], signal.SIGKILL)
        wait_until(lambda: has(events, 1, "has a mirror again"), "the mirror took over, and has another")
        servers = processes_of(process.pid, "server_process")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    os.kill(servers[-1], signal.SIGKILL)  # the newest is a mirror
    ended = heterps(*RESUME, cwd=tmp_path)
    done = summary_of(tmp_path, ended)
    words = " ".join(ended.stdout.split())
    assert "its servers were still there: training goes on with what they hold" in words, words
    assert "server-0.1 has a mirror again" in words, words
    assert (done["samples"], done["restarts"], done["recoveries"]) == (epochs * NUM_ROWS, 0, 2)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [epochs] * NUM_ROWS, "every batch is in the tables once"


def test_a_job_that_was_changed_goes_back_and_dismisses_the_servers(
    tmp_path: Path, long: Any, process_mark: str
) -> None:
    long(checkpoint={"every_samples": 64})
    kill_when_training(tmp_path, "train", "long.yaml", "--run", "run", lines=4)
    assert any("server_process" in found for found in marked_processes(process_mark)), "servers wait"
    long(checkpoint={"every_samples": 640})
    done = summary_of(tmp_path, heterps(*RESUME, cwd=tmp_path))
    assert (done["samples"], done["restarts"], done["recoveries"]) == (EPOCHS * NUM_ROWS, 1, 0)
    assert uses_of_rows(NUM_ROWS, tmp_path / "run") == [EPOCHS] * NUM_ROWS


def test_servers_that_have_waited_long_enough_end_and_the_run_goes_back(
    tmp_path: Path, long: Any, process_mark: str, own_temporary_folder: Path
) -> None:
    long(checkpoint={"every_samples": 64}, servers={"wait_s": 0.2})
    kill_when_training(tmp_path, "train", "long.yaml", "--run", "run", lines=4)
    wait_until(lambda: not marked_processes(process_mark), "the servers have ended")
    assert not list(own_temporary_folder.iterdir()), "folders of sockets are gone"
    done = summary_of(tmp_path, heterps(*RESUME, cwd=tmp_path))
    assert (done["samples"], done["restarts"], done["recoveries"]) == (EPOCHS * NUM_ROWS, 1, 0)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"launcher": "inline"}, "servers of the inline launcher end with the process of the run"),
        ({"launcher": "ray"}, "servers of the ray launcher end with the process of the run"),
        ({"workers": {"channel": "memory"}}, "servers are threads of the process of the run"),
        ({"servers": {"wait_s": 5, "addresses": ["ipc:///tmp/one"]}}, "servers at addresses do not end with the run"),
    ],
)
def test_servers_that_cannot_wait_are_refused(tmp_path: Path, job: Job, fields: dict[str, Any], why: str) -> None:
    made = changed(job, **{"servers": {"wait_s": 5}, "workers": {"channel": "ipc"}, **fields})
    (tmp_path / "long.yaml").write_text(made.model_dump_json(exclude_none=True))
    refused = heterps_here("train", "long.yaml", "--run", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert f"servers.wait_s: {why}" in " ".join(refused.stderr.split())
    assert not (tmp_path / "run").exists()
