"""`heterps serve --follow`: a running job shows in scores within seconds, and each version is the trainer's."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import COMMAND
from served import Served, served
from trained_runs import own_scores

from heterps.checkpoint import of_clock
from heterps.config import load_job
from heterps.launch import train
from heterps.serving.export import export

FRESH_S = 5.0
DEADLINE_S = 60.0
NAPS = '''
"""A model that takes a nap before each step."""

import time

import torch

from heterps.model.zoo import ctr_dnn


def nap(x, seconds):
    time.sleep(seconds)
    return x


torch.fx.wrap("nap")


class Napping(torch.nn.Module):
    def __init__(self, schema, seconds):
        super().__init__()
        self.inner = ctr_dnn(schema, embedding_dim=4, hidden=[8])
        self.seconds = seconds

    def forward(self, dense, slots):
        return self.inner(nap(dense, self.seconds) if self.training else dense, slots)


def make(schema, seconds=0.0):
    return Napping(schema, seconds)
'''
JOB = """
name: napping
model: {{factory: naps.py:make, args: {{seconds: {seconds}}}}}
data:
  train: train.parquet
  columns: {{dense: [price], slots: [item]}}
  batch_size: 16
  epochs: {epochs}
  shuffle: false
tables: {{eviction: {{max_age: 4}}}}
threads: 1
checkpoint: {{every_samples: {every_samples}, every_minutes: null, keep: 200}}
"""
NUM_CLOCKS = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that would train for long, and `reference`: a run of it with a checkpoint at each of its first clocks.

    Items come in order, so that most are evicted within an epoch and come back in the next.
    """
    folder = tmp_path_factory.mktemp("follow")
    draw = np.random.default_rng(0)
    samples = {"label": draw.integers(0, 2, 160), "price": draw.normal(size=160), "item": np.arange(160) // 8}
    pq.write_table(pa.table(samples), folder / "train.parquet")
    (folder / "naps.py").write_text(NAPS)
    (folder / "job.yaml").write_text(JOB.format(seconds=0.1, epochs=1000, every_samples=160))
    (folder / "reference.yaml").write_text(JOB.format(seconds=0.0, epochs=NUM_CLOCKS // 10, every_samples=16))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(load_job("reference.yaml"), "reference")
        export("reference/checkpoints/0000000001", "export")
    return folder


ASKED = pa.table({"price": np.linspace(-1, 1, 20), "item": np.arange(20)})


@contextmanager
def training(folder: Path, run: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A job that trains in a process group of its own, which is killed at the end."""
    with (folder / f"{run}.log").open("ab") as output:
        process = preloaded.Popen(
            [*COMMAND, "train", "job.yaml", "--run", run, *words],
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def collect(server: Served, num_versions: int) -> dict[int, tuple[float, list[float]]]:
    """Ask until so many versions after the first were seen: by clock, when it was first seen, and its scores."""
    seen: dict[int, tuple[float, list[float]]] = {}
    deadline = time.monotonic() + DEADLINE_S
    while len(seen) < num_versions:
        assert time.monotonic() < deadline, f"{seen.keys()}\n{server.health()}\n{server.log.read_text()}"
        version, scores = server.score(ASKED)
        clock = int(version.partition("-")[0])
        if clock > 1:
            seen.setdefault(clock, (time.time(), [float(score or 0) for score in scores]))
        time.sleep(0.02)
    return seen


def check(seen: dict[int, tuple[float, list[float]]], folder: Path) -> None:
    """Compare scores with those of the trainer's checkpoint of each clock."""
    for clock, (_, scores) in seen.items():
        checkpoint = of_clock(folder / "reference" / "checkpoints", clock)
        assert checkpoint is not None, f"the job was faster than expected: clock {clock}"
        expected = own_scores(folder / "reference", ASKED, folder, checkpoint)["score"]
        assert scores == pytest.approx(list(map(float, expected)), abs=1e-6), f"clock {clock}"


def lateness(seen: dict[int, tuple[float, list[float]]], run: Path) -> list[float]:
    """For each checkpoint of a running job: the seconds until a version of its clock, or a later one, was served."""
    first = sorted(seen)[0]  # the job begins to write versions when it hears that somebody follows
    saved = {int(path.name): path.stat().st_mtime for path in (run / "checkpoints").glob("0*")}
    return [
        min(when for other, (when, _) in seen.items() if other >= clock) - saved_s
        for clock, saved_s in saved.items()
        if first < clock <= max(seen)
    ]


def test_a_running_job_is_followed_through_its_death_and_its_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with served("export", "--follow", "live", cwd=folder) as server:
        assert server.version == "1"
        assert server.health()["following"]["state"] == "waiting"
        with training(folder, "live") as job:
            seen = collect(server, 4)
            check(seen, folder)
            answer = server.client.post("/score", json={"columns": ASKED.to_pydict()}).json()
            assert answer["num_unknown"] > 0, "no row was evicted"
            server.until(lambda health: health["following"]["state"] == "following")
            kill(job)
            server.until(lambda health: health["following"]["state"] == "waiting")
            version, _ = server.score(ASKED)
            assert int(version) >= max(seen)
        with training(folder, "live", "--resume"):
            server.until(lambda health: health["following"]["state"] == "following")
            server.until(lambda health: health["version"] != version)
            check(collect(server, 2), folder)
        assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
def test_a_job_on_workers_and_servers_is_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = ("--launcher", "local", "--workers", "1")
    with training(folder, "local", *words), served("export", "--follow", "local", cwd=folder) as server:
        seen = collect(server, 3)
        check(seen, folder)
        assert max(lateness(seen, folder / "local")) < FRESH_S, "on a machine that does nothing else"
