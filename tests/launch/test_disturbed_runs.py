"""Runs that are replanned and then lose a worker, with a test set, through the real commands: they end complete."""

from __future__ import annotations

import json
import os
import pty
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import preloaded
import pytest
from ray_cluster import labelled_cluster
from tiny import write_tiny

from heterps.planning.plan import Plan, PlannedServers, Stage

MODEL = """
import os, signal, time
from pathlib import Path
import torch
import heterps

HERE = Path(__file__).parent

class Disturbed(torch.nn.Module):
    '''A layer whose third batch waits until it is told to go on; the worker of the next fleet dies there, once.'''
    layer_kind = "elementwise"

    def __init__(self):
        super().__init__()
        self.num_batches = 0

    def forward(self, x):
        self.num_batches += torch.is_grad_enabled() and not isinstance(x, torch.fx.Proxy)
        if self.num_batches == 3:
            self.disturb()
        return x

    def disturb(self):
        if not (HERE / "go").exists():
            (HERE / "waits").touch()
            deadline = time.monotonic() + 60
            while not (HERE / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        elif not (HERE / "died").exists():
            (HERE / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

class Net(torch.nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.embedding = heterps.nn.SparseEmbedding(schema.slots, 4)
        self.first = torch.nn.Linear(8, 8)
        self.disturbed = Disturbed()
        self.last = torch.nn.Linear(8, 1)

    def forward(self, dense, slots):
        return self.last(self.disturbed(self.first(self.embedding(slots).flatten(1)))).squeeze(1)
"""
JOB = """
name: disturbed
model: {factory: "disturbed:Net"}
data: {train: train.parquet, test: test.parquet, columns: {dense: [a, b], slots: [s, t]}, batch_size: 16}
threads: 1
metrics_every_samples: 64
checkpoint: {every_samples: 32}
plan: first.json
workers: {lanes: 1, replacements: 0}
cluster:
  resources: {cpu: {device: cpu, usd_per_hour: 0.04, limit: 9}, big: {device: cpu, usd_per_hour: 1.0, limit: 9}}
  server_resource: cpu
"""
COMMAND = [sys.executable, "-c", "from heterps.cli import main; main()"]
DEADLINE_S = 240.0
NUM_ROWS, NUM_LAYERS = 320, 4
COLUMNS = 80


def write_files(folder: Path) -> None:
    (folder / "disturbed.py").write_text(MODEL)
    (folder / "job.yaml").write_text(JOB)
    write_tiny(folder / "train.parquet", NUM_ROWS)
    write_tiny(folder / "test.parquet", 60)
    first = (Stage(first=0, last=NUM_LAYERS - 1, resource="cpu", count=1),)
    second = (
        Stage(first=0, last=0, resource="cpu", count=1),
        Stage(first=1, last=NUM_LAYERS - 1, resource="big", count=1),
    )
    for name, stages in (("first.json", first), ("second.json", second)):
        Plan(
            method="mine",
            stages=stages,
            servers=PlannedServers(resource="cpu", count=1),
            throughput=0.0,
            hours=0.0,
            usd=0.0,
            bottleneck="not predicted",
        ).write(folder / name)


class Terminal:
    """A command on a terminal of 80 columns; `text` is what it has shown."""

    def __init__(self, *words: str, cwd: Path) -> None:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm"}
        self.process = preloaded.Popen(
            [*COMMAND, *words], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._shown: list[bytes] = []
        self._reader = threading.Thread(target=self._read, args=(ours,))
        self._reader.start()

    def _read(self, ours: int) -> None:
        try:
            while shown := os.read(ours, 65536):
                self._shown.append(shown)
        except OSError:
            pass  # the command has ended
        os.close(ours)

    @property
    def text(self) -> str:
        return b"".join(self._shown).decode(errors="replace")

    @property
    def last(self) -> str:
        return self.text[-4000:]

    def wait_for(self, path: Path) -> None:
        """Until there is such a file."""
        deadline = time.monotonic() + DEADLINE_S
        while not path.exists():
            assert time.monotonic() < deadline, self.last
            assert self.process.poll() is None, self.last
            time.sleep(0.05)

    def wait(self) -> int:
        """The exit code of the command, once it has ended."""
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait()


@pytest.mark.parametrize("launcher", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_run_that_is_replanned_and_then_loses_a_worker_ends_with_its_test_set_evaluated(
    tmp_path: Path, launcher: str
) -> None:
    if launcher == "ray":
        pytest.importorskip("ray")
    write_files(tmp_path)
    words = ["train", "job.yaml", "--run", "run", "--launcher", launcher, "--restarts", "2"]
    with labelled_cluster({"cpu": 4, "big": 4}) if launcher == "ray" else nullcontext() as cluster:
        terminal = Terminal(*words, *(["--address", cluster[0].address] if cluster else []), cwd=tmp_path)
        try:
            terminal.wait_for(tmp_path / "waits")
            replan = [*COMMAND, "replan", "run", "--plan", "second.json"]
            replanned = preloaded.run(replan, cwd=tmp_path, timeout=DEADLINE_S)
            assert replanned.returncode == 0, replanned.stderr + terminal.last
            (tmp_path / "go").touch()
            code = terminal.wait()
        finally:
            terminal.kill()
    shown = terminal.text
    assert code == 0, terminal.last
    assert (tmp_path / "died").exists()
    assert "a new plan: 1 cpu + 1 big" in shown
    assert "restart 1 of 2" in shown
    assert "evaluating 60 test samples" in shown
    assert "Traceback" not in shown
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["samples"], summary["metrics_of"]) == ("completed", NUM_ROWS, "test")
    assert summary["auc"] is not None
    assert summary["restarts"] == 2, "from the checkpoint of the new plan, and from that after the loss"
    assert "60" in (tmp_path / "run" / "report.html").read_text()
    assert f"{NUM_ROWS}/{NUM_ROWS}" in shown, "the bar is full at the end"
