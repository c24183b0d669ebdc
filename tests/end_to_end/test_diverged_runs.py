"""A learning rate that is far too high, through the real command: the run says that it diverges, or ends by it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import heterps, heterps_here
from tiny import write_tiny

RATE = "optimizers: {sparse: {kind: adagrad, lr: 30.0}, dense: {kind: adagrad, lr: 30.0}}\n"
SERVED = "cluster: {resources: {cpu: {device: cpu, usd_per_hour: 0.04, limit: 9}}, server_resource: cpu}\n"


def make_wild(job: Path, more: str = "") -> Path:
    """Give the tiny job a learning rate at which its loss grows and stays finite, and labels that nothing predicts."""
    write_tiny(job.parent / "train.parquet", 200, label=list(np.random.default_rng(0).integers(0, 2, 200)))
    job.write_text(job.read_text().replace("metrics_every_samples: 64\n", "metrics_every_samples: 32\n") + RATE + more)
    return job.parent


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_run_that_diverges_says_so_on_the_way_and_in_its_summary(tiny_job: Path, launcher: str) -> None:
    folder = make_wild(tiny_job, SERVED)
    done = heterps("train", "job.yaml", "--run", "run", "--launcher", launcher, cwd=folder)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["train"]["normalised_entropy"] > 2
    assert summary["status"] == "diverged"
    assert "training diverges: at" in summary["warnings"][-1]
    words = " ".join((done.stdout + done.stderr).split())
    assert "warning: training diverges: at" in words
    assert "Lower the learning rate" in words
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "alarm" in lines[-1]
    assert "training diverges" in (folder / "run" / "report.html").read_text()


def test_a_job_may_end_when_it_diverges(tiny_job: Path) -> None:
    folder = make_wild(tiny_job, "on_divergence: raise\n")
    done = heterps_here("train", "job.yaml", "--run", "run", cwd=folder)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "training diverges: at" in done.stderr
    assert not (folder / "run" / "summary.json").exists()
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ["alarm" in line for line in lines] == [False] * (len(lines) - 1) + [True]


def test_a_good_run_and_numbers_far_from_zero_have_no_alarm(tiny_job: Path) -> None:
    folder = tiny_job.parent
    assert heterps_here("train", "job.yaml", "--run", "good", cwd=folder).returncode == 0
    numbers = tiny_job.read_text().replace("batch_size: 16", "batch_size: 4")
    numbers = numbers.replace("slots: [s, t]", "slots: [s, t], label: a, labels: {a: mse}").replace("[a, b]", "[b]")
    tiny_job.write_text(numbers)
    assert heterps_here("train", "job.yaml", "--run", "numbers", cwd=folder).returncode == 0
    for run in ("good", "numbers"):
        summary = json.loads((folder / run / "summary.json").read_text())
        assert summary["status"] == "completed"
        assert not [text for text in summary.get("warnings", ()) if "diverges" in text]
