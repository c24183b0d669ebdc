"""Runs across hosts, and what they must come to: the losses and tables of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, heterps_here
from hosts import Hosts, address

from heterps.checkpoint import latest, load

DEADLINE_S = 240.0
NUM_BATCHES = 200
BETWEEN = 45
"""Lines of metrics of a run that is between two checkpoints, the last after batch 30."""
KEY = "keys/job.key"
PLACE = f"tcp://{address(2)}:5555"
"""Where the server on host 2 listens."""
ON_RAY = ("--plan", "plan.json", "--launcher", "ray", "--address", "auto")


def losses(run: str = "run") -> list[float]:
    path = Path(run, "metrics.jsonl")
    return [json.loads(line)["log_loss"] for line in path.read_text().splitlines()] if path.exists() else []


def summary(run: str = "run") -> dict[str, object]:
    found: dict[str, object] = json.loads(Path(run, "summary.json").read_text())
    return found


def log(number: int) -> str:
    """What the command on a host has printed, in one line."""
    return " ".join(Path(f"{number}.log").read_text().split())


def assert_as_one_process(run: str = "run", *, num_repeated: int = 0) -> None:
    """Hold a run that has ended to the one of one process: each batch is in it once, in order.

    num_repeated  batches of a lone worker that were repeated though servers had applied them: these tell the loss of
                  the model that has learned from them already, and change nothing
    """
    assert len(losses(run)) == len(losses("inline")) == NUM_BATCHES
    other = [
        one for one, loss in zip(losses(run), losses("inline"), strict=True) if one != pytest.approx(loss, rel=1e-5)
    ]
    assert len(other) <= num_repeated, other
    found, expected = (load(latest(f"{name}/checkpoints")) for name in (run, "inline"))
    for name, table in expected.tables.items():
        theirs, mine = (rows.whole() for rows in (table, found.tables[name]))
        order, own_order = np.argsort(theirs.keys), np.argsort(mine.keys)
        np.testing.assert_array_equal(mine.keys[own_order], theirs.keys[order])
        np.testing.assert_allclose(mine.values[own_order], theirs.values[order], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(mine.state[own_order], theirs.state[order], rtol=1e-4, atol=1e-6)


@contextmanager
def running(hosts: Hosts, number: int, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A heterps command that runs on a host; what it prints goes to `NUMBER.log`."""
    with (
        Path(f"{number}.log").open("w") as printed,
        subprocess.Popen(
            hosts.command(number, [*COMMAND, *words]), stdout=printed, stderr=printed, text=True, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # nsenter, and what it runs


@contextmanager
def training(hosts: Hosts, *words: object) -> Iterator[subprocess.Popen[str]]:
    """`heterps train` into `run` on host 1."""
    with running(hosts, 1, "train", "job.yaml", "--run", "run", *words) as process:
        yield process


@contextmanager
def server(hosts: Hosts) -> Iterator[subprocess.Popen[str]]:
    """`heterps server start` on host 2."""
    with running(hosts, 2, "server", "start", "job.yaml", "--address", PLACE, "--key", KEY) as process:
        yield process


def with_server(more: str = "") -> None:
    """Let the job's tables be on a server of host 2; `more` are further fields of `servers`."""
    heterps_here("keys", "create", "keys", cwd=Path.cwd())
    with Path("job.yaml").open("a") as job:
        job.write(f"servers: {{addresses: ['{PLACE}'], key: {KEY}{more}}}\n")


def write_plan(servers_on: str = "far") -> None:
    """Two workers of stage 1 on `near`, one of stage 2 on `far`, and a server."""
    stages = [
        {"first": 0, "last": 1, "resource": "near", "count": 2},
        {"first": 2, "last": 4, "resource": "far", "count": 1},
    ]
    bill = {"method": "by hand", "throughput": 0, "hours": 0, "usd": 0, "bottleneck": ""}
    plan = {"stages": stages, "servers": {"resource": servers_on, "count": 1}, **bill}
    Path("plan.json").write_text(json.dumps(plan))
    job = Path("job.yaml")
    job.write_text(job.read_text().replace("server_resource: far", f"server_resource: {servers_on}"))


def wait_for_lines(count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(losses()) < count:
        assert process.poll() is None, log(1)
        assert time.monotonic() < deadline, log(1)
        time.sleep(0.02)
