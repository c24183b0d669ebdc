"""How many batches are under way at once, told by the run before it begins and by its staleness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import heterps_here
from tiny import write_tiny


@pytest.fixture
def job(tiny_job: Path) -> Path:
    write_tiny(tiny_job.parent / "train.parquet", 1600)
    return tiny_job


def train(job: Path, lanes: int | None, *words: object) -> tuple[dict[str, Any], str]:
    """Train on threads as workers; the summary, and what was said meanwhile."""
    fields = f"workers: {{channel: memory, lanes: {lanes or 'null'}}}\n"
    (job.parent / "lanes.yaml").write_text(job.read_text() + fields)
    folder = f"run-{len(list(job.parent.glob('run-*')))}"
    done = heterps_here("train", "lanes.yaml", "--launcher", "local", "--run", folder, *words, cwd=job.parent)
    assert done.returncode == 0, done.stderr
    return json.loads((job.parent / folder / "summary.json").read_text()), " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("policy", ["asp", "ssp:3", "dssp:1:2"])
def test_a_worker_has_one_batch_under_way(job: Path, policy: str) -> None:
    summary, said = train(job, None, "--workers", 2, "--sync", policy)
    assert summary["staleness"] <= 1, "one other worker pushes while a batch is computed"
    assert "lanes" not in said
    summary, _ = train(job, None, "--workers", 1, "--sync", policy)
    assert summary["staleness"] == 0


def test_more_lanes_are_there_if_asked_for_and_the_run_says_what_they_mean(job: Path) -> None:
    summary, said = train(job, 6, "--workers", 2, "--sync", "asp")
    assert "6 lanes through 2 workers" in said
    assert "about 5 updates old" in said
    assert 3 < summary["staleness"] <= 5.5


def test_four_workers_make_gradients_so_old_that_the_run_says_it(job: Path) -> None:
    summary, said = train(job, None, "--workers", 4, "--sync", "asp")
    assert "4 workers: this many batches are under way at once" in said
    assert "about 3 updates old" in said
    assert summary["staleness"] <= 3.5
    _, said = train(job, None, "--workers", 4, "--sync", "bsp")
    assert "updates old" not in said, "in rounds nothing is"
