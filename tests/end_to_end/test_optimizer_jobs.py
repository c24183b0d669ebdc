"""Everything around a step at once, through the command line: on processes as in one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from command import heterps

from heterps.launch import train

OPTIMIZERS = {
    "sparse": {"kind": "adagrad", "lr": 0.1, "weight_decay": 0.001},
    "dense": {"kind": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "schedule": {"kind": "cosine", "warmup": 40, "until": 400},
    "groups": [{"match": "*.bias", "weight_decay": 0}, {"match": "embedding", "lr": 0.05}],
    "clip": {"norm": 0.05},
    "accumulate": 2,
}


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_job_with_every_knob_trains_on_processes_as_in_one(tiny_job: Path, tmp_path: Path) -> None:
    job = yaml.safe_load(tiny_job.read_text()) | {"optimizers": OPTIMIZERS, "metrics_every_samples": 16, "threads": 2}
    tiny_job.write_text(yaml.safe_dump(job))
    train(tiny_job, "inline")
    done = heterps("train", tiny_job, "--run", "local", "--launcher", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    inline, local = ([line["log_loss"] for line in lines(tmp_path / launcher)] for launcher in ("inline", "local"))
    assert len(inline) == 13
    assert local == pytest.approx(inline, rel=1e-5)


def test_a_misspelled_group_ends_the_command_before_a_run_is_made(tiny_job: Path, tmp_path: Path) -> None:
    job = yaml.safe_load(tiny_job.read_text()) | {"optimizers": {"groups": [{"match": "embeding", "lr": 0.1}]}}
    tiny_job.write_text(yaml.safe_dump(job))
    done = heterps("train", tiny_job, "--run", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "embeding matches no table or parameter of the model, which has embedding, " in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
