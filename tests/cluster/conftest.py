"""Every test of this folder runs on hosts of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import heterps_here
from hosts import why_not
from tiny import JOB, write_tiny

CLUSTER = """
cluster:
  resources:
    near: {device: cpu, usd_per_hour: 1.0, limit: 4}
    far: {device: cpu, usd_per_hour: 1.0, limit: 4}
  server_resource: far
checkpoint: {every_samples: 480}
"""


@pytest.fixture(autouse=True)
def hosts_are_possible() -> None:
    """Skip a test where this machine cannot have hosts, and say why."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of every host: a job of 1,600 rows, 200 batches, with a line of metrics for each batch.

    The run `inline` is that of one process.
    """
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 1600)
    write_tiny(tmp_path / "test.parquet", 60)
    job = JOB.replace("metrics_every_samples: 64", "metrics_every_samples: 16").replace("16\n", "16\n  epochs: 2\n", 1)
    (tmp_path / "job.yaml").write_text(job + CLUSTER)
    done = heterps_here("train", "job.yaml", "--run", "inline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path
