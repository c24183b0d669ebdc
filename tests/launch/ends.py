"""Jobs that end badly: a tiny job in two stages, with a model that fails as it is told to, on threads or processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
from tiny import write_tiny

from heterps.checkpoint import Snapshot, load_latest
from heterps.config import Job, load_job
from heterps.data.keys import slots_from_ids
from heterps.planning.plan import Plan, PlannedServers, Stage

MODEL = """
import os, signal, sys, threading
import torch
import heterps

def is_in_worker():
    return "worker" in threading.current_thread().name or sys.argv[0].endswith("worker_process.py")

class Fails(torch.nn.Module):
    '''A layer that does `how` on the third batch that it trains on.'''
    layer_kind = 'elementwise'
    def __init__(self, how):
        super().__init__()
        self.how, self.num_batches = how, 0

    def forward(self, x):
        self.num_batches += is_in_worker() and torch.is_grad_enabled()
        return getattr(self, self.how)(x) if self.num_batches == 3 else x

    def nothing(self, x): return x
    def raises(self, x): raise ValueError("the third batch is too much")
    def exits(self, x): sys.exit(0)
    def leaves(self, x): print("leaving"); os._exit(7)
    def leaves_in_peace(self, x): os._exit(0)
    def dies(self, x): os.kill(os.getpid(), signal.SIGKILL)
    def nan(self, x): return x * float("nan")
    def hangs(self, x): threading.Event().wait()

class Net(torch.nn.Module):
    def __init__(self, schema, how="nothing", chatter=0):
        super().__init__()
        print("y" * chatter)
        if how == "raises_in_worker" and is_in_worker():
            raise RuntimeError("no licence here")
        if how == "hangs_in_worker" and is_in_worker():
            threading.Event().wait()
        self.embedding = heterps.nn.SparseEmbedding(schema.slots, 4)
        self.first = torch.nn.Linear(8, 8)
        self.fails = Fails(how if hasattr(Fails, how) else "nothing")
        self.last = torch.nn.Linear(8, 1)

    def forward(self, dense, slots):
        return self.last(self.fails(torch.relu(self.first(self.embedding(slots).flatten(1))))).squeeze(1)
"""

JOB = """
name: ends
model: {{factory: "net_that_ends:Net", args: {{how: {how}, chatter: {chatter}}}}}
data:
  train: train.parquet
  test: test.parquet
  columns: {{dense: [a, b], slots: [s, t]}}
  batch_size: 16
  epochs: {epochs}
threads: 1
metrics_every_samples: 64
launcher: local
plan: plan.json
cluster:
  resources:
    cpu: {{device: cpu, usd_per_hour: 0.04, limit: 9}}
    big: {{device: cpu, usd_per_hour: 1.0, limit: 9}}
  server_resource: cpu
"""
NUM_ROWS = 400
NUM_LAYERS = 5
"""embedding, first, relu, fails, last"""


def write_job(
    folder: Path, how: str = "nothing", *, channel: str = "memory", chatter: int = 0, epochs: int = 1, **fields: Any
) -> Path:
    """A job of two stages with one worker each and a server; `fields` replace the job's own."""
    (folder / "net_that_ends.py").write_text(MODEL)
    if not (folder / "train.parquet").exists():
        write_tiny(folder / "train.parquet", NUM_ROWS)
        write_tiny(folder / "test.parquet", 60)
    write_plan(folder / "plan.json")
    fields["workers"] = {"channel": channel, "lanes": 1, "replacements": 0, **fields.get("workers", {})}
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())
    (folder / "job.yaml").write_text(JOB.format(how=how, chatter=chatter, epochs=epochs) + lines)
    return folder / "job.yaml"


def read_job(folder: Path, how: str = "nothing", **options: Any) -> Job:
    return load_job(write_job(folder, how, **options))


def write_plan(path: Path) -> None:
    """Embedding and first layer here, the rest there."""
    stages = ((0, 1, "cpu"), (2, NUM_LAYERS - 1, "big"))
    Plan(
        method="mine",
        stages=tuple(Stage(first=first, last=last, resource=resource, count=1) for first, last, resource in stages),
        servers=PlannedServers(resource="cpu", count=1),
        throughput=0.0,
        hours=0.0,
        usd=0.0,
        bottleneck="not predicted",
    ).write(path)


DEADLINE_S = 120.0
"""For anything: processes take long to start on a machine that is busy."""


@contextmanager
def command(job: Path, run: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`heterps train` in the folder of the job, leader of a process group as in a terminal; killed at the end.

    What it prints is in run.txt beside the job.
    """
    code = f"from heterps.cli import main; main({['train', str(job), '--run', str(run), *words]!r})"
    with (job.parent / "run.txt").open("ab") as output:
        process = preloaded.Popen(
            [sys.executable, "-c", code], cwd=job.parent, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def wait_until(is_so: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.02)


def is_training(run: Path, process: subprocess.Popen[bytes]) -> bool:
    """Whether an interval of metrics is written, by a command that still runs."""
    assert process.poll() is None, (run.parent / "run.txt").read_text()
    return (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0


def assert_same_tables(got: Snapshot, wanted: Snapshot) -> None:
    """To the bit."""
    assert (got.clock, got.samples) == (wanted.clock, wanted.samples)
    for name, array in wanted.dense.items():
        np.testing.assert_array_equal(got.dense[name], array, err_msg=name)
    for name, table in ((name, table.whole()) for name, table in wanted.tables.items()):
        mine, theirs = np.argsort(got.tables[name].whole().keys), np.argsort(table.keys)
        for field in ("keys", "values", "state"):
            ours, other = getattr(got.tables[name].whole(), field)[mine], getattr(table, field)[theirs]
            np.testing.assert_array_equal(ours, other, err_msg=f"{name} {field}")


def uses_of_rows(num_rows: int, run: Path) -> list[int]:
    """How often each row of the data was trained on, if slot t has the ids from 1000 on, another in every row.

    A row of the table counts 1 when it is new, and 1 more a push.
    """
    table = load_latest(run / "checkpoints").tables["embedding"].whole()
    keys = slots_from_ids(np.arange(1000, 1000 + num_rows)[:, None], ("t",)).keys
    uses: list[int] = (np.round(table.uses[np.isin(table.keys, keys)]).astype(int) - 1).tolist()
    return uses
