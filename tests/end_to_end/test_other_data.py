"""A run that is done with its data goes on with other data: the model, the clock and the optimizers stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import heterps_here
from stops import StopsAfter
from tiny import JOB, write_tiny

from heterps.config import Job, load_job
from heterps.launch import train
from heterps.training.run.observer import Observer


@pytest.fixture
def place(tiny_job: Path) -> Path:
    """Jobs over three files: first.yaml, second.yaml, third.yaml."""
    for name, num_rows in {"first": 200, "second": 330, "third": 128}.items():
        write_tiny(tiny_job.parent / f"{name}.parquet", num_rows)
        (tiny_job.parent / f"{name}.yaml").write_text(JOB.replace("train.parquet", f"{name}.parquet"))
    return tiny_job.parent


def job_of(name: str) -> Job:
    return load_job(f"{name}.yaml")


def learned(folder: str) -> list[dict[str, Any]]:
    """The lines of metrics without times."""
    timed = ("seconds", "samples_per_s", "stages", "usd")
    lines = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


@pytest.mark.parametrize("words", [(), ("--launcher", "local", "--workers", "1")], ids=["inline", "local"])
def test_a_run_goes_on_with_each_file_from_its_first_row_to_its_last(place: Path, words: tuple[str, ...]) -> None:
    samples = 0
    for number, (name, num_rows) in enumerate({"first": 200, "second": 330, "third": 128}.items()):
        more = ("--resume",) if number else ()
        done = heterps_here("train", f"{name}.yaml", "--run", "run", "--json", *words, *more, cwd=place)
        assert done.returncode == 0, done.stderr
        samples += num_rows
        summary = json.loads(done.stdout)
        assert (summary["status"], summary["samples"]) == ("completed", samples)
    again = heterps_here("train", "third.yaml", "--run", "run", "--json", "--resume", *words, cwd=place)
    assert json.loads(again.stdout)["samples"] == samples, "a file that is done is not trained on again"


def test_a_run_stopped_within_the_second_file_goes_on_at_its_next_row(place: Path) -> None:
    for folder in ("whole", "stopped"):
        train(job_of("first"), folder)
    train(job_of("second"), "whole", resume=True)
    assert train(job_of("second"), "stopped", resume=True, observer=StopsAfter(300)).summary["samples"] < 530
    refused = heterps_here("train", "third.yaml", "--run", "stopped", "--resume", cwd=place)
    assert refused.returncode == 4
    assert "A run goes on with other data once it is done with its own." in " ".join(refused.stderr.split())
    train(job_of("second"), "stopped", resume=True)
    assert learned("stopped") == learned("whole")


def test_its_progress_counts_what_came_before(place: Path) -> None:
    class Started(Observer):
        def started(self, samples: int, total: int, resumed: bool) -> None:
            self.at = (samples, total)

    train(job_of("first"), "run")
    seen = Started()
    train(job_of("second"), "run", resume=True, observer=seen)
    assert seen.at == (200, 530)
