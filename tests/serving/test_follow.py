"""Following a run as its users do: a command trains on processes, and somebody else reads its versions."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import preloaded
import pytest
from command import COMMAND, DEADLINE_S
from followers import Follower, drifting
from tiny import JOB, write_tiny

from heterps.checkpoint import load_latest, stream
from heterps.errors import ConfigError, RunError
from heterps.launch import train
from heterps.serving.follow import Stream, follow

MORE = """
launcher: local
threads: 2
tables: {eviction: {max_age: 40}}
servers: {count: 2}
workers: {restarts: 1}
checkpoint: {every_samples: 320}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "train.parquet", 640, **drifting(640))
    write_tiny(tmp_path / "test.parquet", 20)
    text = JOB.replace("threads: 1\n", "").replace("batch_size: 16\n", "batch_size: 16\n  epochs: 10\n")
    (tmp_path / "job.yaml").write_text(text + MORE)
    return tmp_path


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < until, f"{what} did not come"
        time.sleep(0.02)


@contextmanager
def trained(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`heterps train` in a process of its own, which is gone at the end."""
    command = [*COMMAND, "train", "job.yaml", "--run", "run"]
    with (folder / "printed").open("w") as printed:
        process = preloaded.Popen(command, cwd=folder, stdout=printed, stderr=subprocess.STDOUT, text=True)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def server_of(process: int) -> int:
    """The first server among the processes that a process has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return next(int(child) for child in children if b"server_process" in Path(f"/proc/{child}/cmdline").read_bytes())


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_a_run_on_processes_is_followed_through_the_loss_of_a_server_to_its_end(folder: Path) -> None:
    run, follower = folder / "run", Follower()

    def take(versions: Stream) -> int:
        for version in versions.poll():
            follower.take(version)
        return len(follower.versions)

    with trained(folder) as process:
        wait_until((run / "job.yaml").exists, "the run")
        with follow(run, every_s=0.05) as versions:
            wait_until(lambda: take(versions) >= 4, "four versions")
            assert not follower.versions[-1].is_full
            os.kill(server_of(process.pid), signal.SIGKILL)
            before = take(versions)
            wait_until(lambda: take(versions) > before + 2, "versions after the restart")
            assert any(version.is_full for version in follower.versions[before:])
            assert process.wait(DEADLINE_S) == 0, (folder / "printed").read_text()
            assert "restart 1 of 1" in " ".join((folder / "printed").read_text().split())
            take(versions)
    assert follower.gone, "some rows were evicted"
    follower.compare(load_latest(run / "checkpoints"))


def test_what_a_run_wrote_is_there_after_its_end(tiny_job: Path) -> None:
    train(tiny_job, "run")
    writer = stream.StreamWriter(Path("run"))
    snapshot = load_latest("run/checkpoints")
    writer.write(snapshot)
    with follow("run") as versions:
        assert [version.clock for version in versions.poll()] == [snapshot.clock]
        assert versions.poll() == []


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"), follow(tmp_path):
        pass


@pytest.mark.parametrize("every_s", [7200.0, 0.0, -1.0, float("nan")])
def test_a_time_that_a_job_would_not_take_is_refused_at_once(tmp_path: Path, every_s: float) -> None:
    with pytest.raises(ConfigError, match="3600 s at most"), follow(tmp_path, every_s):
        pass
