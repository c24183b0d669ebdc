"""A checkpoint that is due when the data ends is that of the end: it is written once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import heterps
from tiny import JOB, write_tiny

CLUSTER = "cluster: {resources: {cpu: {usd_per_hour: 0.04, limit: 9}}, server_resource: cpu}\n"
MIRRORED = "launcher: local\nservers: {replicas: 1}\n"


@pytest.mark.parametrize("fields", ["", "launcher: local\nsync: asp\n", MIRRORED], ids=["inline", "asp", "mirrored"])
def test_a_checkpoint_that_is_due_at_the_end_is_written_once(tmp_path: Path, fields: str) -> None:
    write_tiny(tmp_path / "train.parquet", 320)
    job = JOB.replace("  test: test.parquet\n", "") + CLUSTER + "checkpoint: {every_samples: 160}\n" + fields
    (tmp_path / "job.yaml").write_text(job)
    done = heterps("train", "job.yaml", "--run", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"checkpoint \S*?(\d+) \(", " ".join((done.stdout + done.stderr).split()))
    assert len(said) == len(set(said)) == 2, said
    assert len(list((tmp_path / "run" / "checkpoints").glob("*/manifest.json"))) == 2
