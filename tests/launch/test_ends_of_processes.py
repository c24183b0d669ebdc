"""Runs by a plan on processes that die, are stopped, or lose their parent: who it was is said, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ends import DEADLINE_S, NUM_ROWS, command, is_training, read_job, wait_until, write_job
from leaks import marked_processes

from heterps.checkpoint import load_latest
from heterps.errors import ConfigError, HeterpsError, ModelError, PeerLost
from heterps.launch import train
from heterps.processes import Child
from heterps.training.run.observer import Observer

pytestmark = pytest.mark.usefixtures("no_leaks", "in_its_folder")
SOON_S = 30.0
"""Far less than workers.deadline_s and servers.deadline_s, which are a minute and more."""
LONG = 1000
"""Epochs that no test waits for."""


class Once(Observer):
    """Does something when training is under way, and says when that was."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do, self.at = do, 0.0

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        if not self.at and samples >= 100:
            self.at = time.monotonic()
            self.do()


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


# --- signals to the command ------------------------------------------------------------------------------------------


def test_an_interrupt_from_the_terminal_saves_and_leaves_nothing(tmp_path: Path, process_mark: str) -> None:
    job, run = write_job(tmp_path, channel="ipc", epochs=LONG, chatter=200_000), tmp_path / "run"
    with command(job, run) as process:
        wait_until(lambda: is_training(run, process), "the run trains")
        assert len(marked_processes(process_mark)) == 4, "the command, two workers and a server"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130, (tmp_path / "run.txt").read_text()
        assert not marked_processes(process_mark), "they were gone before the command was"
    assert "Traceback" not in (tmp_path / "run.txt").read_text()
    summary = summary_of(run)
    assert summary["status"] == "stopped by SIGINT"
    assert load_latest(run / "checkpoints").samples == summary["samples"] > 0
    assert "y" * 200_000 in (run / "logs" / "worker-2.0.log").read_text(), "what user code prints"
    epochs = summary["samples"] // NUM_ROWS + 1
    resumed = train(read_job(tmp_path, epochs=epochs, chatter=200_000), run, resume=True).summary
    assert (resumed["status"], resumed["samples"]) == ("completed", epochs * NUM_ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT, signal.SIGINT]])
@pytest.mark.parametrize("begin", ["training", "starting"])
def test_signals_to_the_command_alone(
    tmp_path: Path, process_mark: str, numbers: list[signal.Signals], begin: str
) -> None:
    job, run = write_job(tmp_path, channel="ipc", epochs=LONG), tmp_path / "run"

    def has_begun() -> bool:
        workers = [found for found in marked_processes(process_mark) if "worker_process" in found]
        return is_training(run, process) if begin == "training" else len(workers) == 2

    with command(job, run) as process:
        wait_until(has_begun, f"the run is {begin}")
        for number in numbers:
            process.send_signal(number)
        code = process.wait(DEADLINE_S)
        assert not marked_processes(process_mark)
    assert code == {signal.SIGTERM: 143, signal.SIGINT: 130}[numbers[0]], (tmp_path / "run.txt").read_text()
    assert "Traceback" not in (tmp_path / "run.txt").read_text()
    if len(numbers) == 1:
        summary = summary_of(run)
        assert summary["status"] == f"stopped by {numbers[0].name}"
        assert load_latest(run / "checkpoints").samples == summary["samples"]
        assert (summary["samples"] == 0) == (begin == "starting")


def test_processes_end_by_themselves_when_the_command_is_killed(
    tmp_path: Path, process_mark: str, own_temporary_folder: Path
) -> None:
    """Servers wait for a while for somebody who resumes the run."""
    job, run = write_job(tmp_path, channel="ipc", epochs=LONG, servers={"wait_s": 0.5}), tmp_path / "run"
    with command(job, run) as process:
        wait_until(lambda: is_training(run, process), "the run trains")
        process.kill()
        process.wait(DEADLINE_S)
        wait_until(lambda: not marked_processes(process_mark), "workers and servers are gone", SOON_S)
    assert not list(own_temporary_folder.iterdir()), "folders of sockets are gone"
    assert not (run / "control.json").exists()


# --- processes that die ----------------------------------------------------------------------------------------------

DEATHS = [
    ("dies", PeerLost, r"^worker-2\.0 \(stage 2, process \d+\) ended with exit code -9 \(SIGKILL\)"),
    (
        "leaves",
        PeerLost,
        r"^worker-2\.0 \(stage 2, process \d+\) ended with exit code 7: leaving \(all .*worker-2.0.log\)",
    ),
    ("leaves_in_peace", PeerLost, r"^worker-2\.0 \(stage 2, process \d+\) ended with exit code 0"),
    ("raises", ModelError, r"^worker-2\.0: Net failed in stage 2 on micro-batch \(3, 0\): ValueError: the third batch"),
    ("exits", ModelError, r"^worker-2\.0: code of the model called sys.exit\(0\)"),
    ("raises_in_worker", ModelError, r"^worker-[12]\.0: .*RuntimeError: no licence here"),
]


@pytest.mark.parametrize(
    ("how", "kind", "words"), [DEATHS[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in DEATHS[1:])]
)
def test_a_worker_that_ends_is_named_with_the_cause(tmp_path: Path, how: str, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words) as raised:
        train(read_job(tmp_path, how, channel="ipc", epochs=LONG), tmp_path / "run")
    assert raised.value.exit_code == kind.exit_code


@pytest.mark.slow
@pytest.mark.parametrize("name", ["server-0", "worker-1.0"])
def test_a_process_that_is_killed_is_missed_at_once(
    tmp_path: Path, children: dict[str, list[Child]], name: str
) -> None:
    observer = Once(lambda: children[name][-1].kill())
    with pytest.raises(PeerLost, match=rf"^{name} \(.*process \d+\) ended with exit code -9 \(SIGKILL\)"):
        train(read_job(tmp_path, channel="ipc", epochs=LONG), tmp_path / "run", observer=observer)
    assert time.monotonic() - observer.at < SOON_S


@pytest.mark.slow
@pytest.mark.parametrize("name", ["worker-2.0", pytest.param("worker-1.0", marks=pytest.mark.slow)])
def test_a_worker_that_is_stopped_is_named_at_the_deadline(
    tmp_path: Path, children: dict[str, list[Child]], name: str
) -> None:
    observer = Once(lambda: os.kill(children[name][-1].pid, signal.SIGSTOP))
    job = read_job(tmp_path, channel="ipc", epochs=LONG, workers={"deadline_s": 8.0})
    with pytest.raises(PeerLost, match=rf"has waited \d+ s for .*{name}"):
        train(job, tmp_path / "run", observer=observer)
    assert 8.0 <= time.monotonic() - observer.at < SOON_S


# --- starts that fail ------------------------------------------------------------------------------------------------


class Occupied(Observer):
    """Listens at a socket of the run before the run does."""

    def __init__(self, name: str) -> None:
        self.name, self.socket = name, socket.socket(socket.AF_UNIX)

    def waiting(self, what: str) -> None:
        if "worker" in what:
            newest = max(Path(tempfile.gettempdir()).glob("heterps-*"), key=lambda folder: folder.stat().st_mtime_ns)
            self.socket.bind(str(newest / self.name))
            self.socket.listen()


@pytest.mark.parametrize("name", ["coordinator", pytest.param("worker-2.0.1", marks=pytest.mark.slow)])
def test_a_socket_that_is_in_use_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    observer = Occupied(name)
    try:
        with pytest.raises(ConfigError, match=rf"address ipc://.*/{name}: another process listens there"):
            train(read_job(tmp_path, channel="ipc"), tmp_path / "run", observer=observer)
    finally:
        observer.socket.close()


@pytest.mark.slow
def test_a_worker_that_hangs_at_its_start_is_named_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps.training.coordinator.core.START_S", 3.0)
    job = read_job(tmp_path, "hangs_in_worker", channel="ipc", workers={"deadline_s": 3.0})
    with pytest.raises(PeerLost, match=r"worker-1\.0, worker-2\.0 did not start within 3 s: alive, but not ready"):
        train(job, tmp_path / "run")


@pytest.mark.slow
def test_a_server_that_cannot_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = read_job(tmp_path, channel="ipc")

    class Remove(Observer):
        def waiting(self, what: str) -> None:
            if "server" in what:
                (tmp_path / "run" / "job.yaml").unlink()

    with pytest.raises(HeterpsError, match=r"server-0 .*failed with ConfigError: .*job\.yaml"):
        train(job, tmp_path / "run", observer=Remove())
