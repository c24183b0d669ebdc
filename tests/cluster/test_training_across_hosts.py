"""One job on several hosts: BSP has the losses of one process, whatever the links between them do."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import COMMAND, heterps_here
from hosts import Hosts, address, start_ray
from tiny import JOB, write_tiny

pytestmark = pytest.mark.slow
DEADLINE_S = 90.0
CUT_S = 2.0
CLUSTER = """
cluster:
  resources:
    near: {device: cpu, usd_per_hour: 1.0, limit: 4}
    far: {device: cpu, usd_per_hour: 1.0, limit: 4}
  server_resource: far
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of every host: a job of 1,600 rows, 200 batches, with a line of metrics for each batch."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 1600)
    write_tiny(tmp_path / "test.parquet", 60)
    job = JOB.replace("metrics_every_samples: 64", "metrics_every_samples: 16").replace("16\n", "16\n  epochs: 2\n", 1)
    (tmp_path / "job.yaml").write_text(job + CLUSTER)
    done = heterps_here("train", "job.yaml", "--run", "inline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def losses(run: str) -> list[float]:
    path = Path(run, "metrics.jsonl")
    return [json.loads(line)["log_loss"] for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def running(hosts: Hosts, number: int, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A heterps command that runs on a host; what it prints goes to `NUMBER.log`."""
    with (
        Path(f"{number}.log").open("w") as log,
        subprocess.Popen(hosts.command(number, [*COMMAND, *words]), stdout=log, stderr=log, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def wait_for_lines(run: str, count: int, training: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(losses(run)) < count:
        assert training.poll() is None, Path("1.log").read_text()
        assert time.monotonic() < deadline, Path("1.log").read_text()
        time.sleep(0.02)


def train_over_a_cut(hosts: Hosts, *words: object) -> None:
    """Train on host 1 into `run`, at 20 Mb/s; the link of host 2 is down for a while in the middle."""
    hosts.limit(2, "20mbit")
    with running(hosts, 1, "train", "job.yaml", "--run", "run", *words) as training:
        wait_for_lines("run", 40, training)
        hosts.cut(2)
        time.sleep(1.0)
        stands_at = len(losses("run"))
        time.sleep(CUT_S)
        assert len(losses("run")) == stands_at < 200
        hosts.heal(2)
        assert training.wait(DEADLINE_S) == 0, Path("1.log").read_text()
    assert len(losses("run")) == 200
    assert losses("run") == pytest.approx(losses("inline"), rel=1e-5)


def test_stages_and_a_server_on_two_ray_hosts_train_as_one_process_does_over_a_cut_link(folder: Path) -> None:
    stages = [
        {"first": 0, "last": 1, "resource": "near", "count": 2},
        {"first": 2, "last": 4, "resource": "far", "count": 1},
    ]
    bill = {"method": "by hand", "throughput": 0, "hours": 0, "usd": 0, "bottleneck": ""}
    Path("plan.json").write_text(json.dumps({"stages": stages, "servers": {"resource": "far", "count": 1}, **bill}))
    with Hosts(2) as hosts:
        start_ray(hosts, [{"near": 2}, {"far": 2}])
        train_over_a_cut(hosts, "--plan", "plan.json", "--launcher", "ray", "--address", "auto")
        assert min(hosts.num_bytes(2)) > 100_000


def test_a_server_on_another_host_keeps_the_tables_of_one_process_over_a_cut_link(folder: Path) -> None:
    heterps_here("keys", "create", "keys", cwd=folder)
    place = f"tcp://{address(2)}:5555"
    with Path("job.yaml").open("a") as job:
        job.write(f"servers: {{addresses: ['{place}'], key: keys/job.key}}\n")
    with (
        Hosts(2) as hosts,
        running(hosts, 2, "server", "start", "job.yaml", "--address", place, "--key", "keys/job.key"),
    ):
        train_over_a_cut(hosts)
