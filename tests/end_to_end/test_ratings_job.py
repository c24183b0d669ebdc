"""From raw files of ratings to a validated model: the example job inline and on workers, and the example script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest
from command import heterps

from heterps.config import load_job

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ROWS = 12_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a small log of ratings, and the example job for its size."""
    place = tmp_path_factory.mktemp("ratings")
    words = ("--task", "ratings", "--files", "tsv", "--rows", ROWS, "--test-rows", ROWS // 4)
    done = heterps("data", "synth", "data/ratings", *words, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "teacher RMSE" in done.stdout
    job = (EXAMPLES / "ratings.yaml").read_text().replace("batch_size: 512", "batch_size: 100")
    (place / "job.yaml").write_text(job.replace("100_000", "5_000").replace("epochs: 4", "epochs: 2") + "threads: 1\n")
    return place


def trained(place: Path, run: str, *words: str) -> dict[str, Any]:
    done = heterps("train", "job.yaml", "--run", run, *words, cwd=place)
    assert done.returncode == 0, done.stderr
    assert "validation at 5,000 samples: RMSE" in done.stdout + done.stderr
    return json.loads((place / run / "summary.json").read_text())


@pytest.fixture(scope="module")
def inline(place: Path) -> dict[str, Any]:
    return trained(place, "inline")


def ratings(folder: Path) -> dict[str, np.ndarray]:
    """The columns of numbers of the raw files."""
    lines = [line.split("\t") for path in sorted(folder.glob("*.tsv")) for line in path.read_text().splitlines()]
    names = lines[0]
    rows = np.array([line[:6] for line in lines if line != names], float)
    return dict(zip(names, rows.T, strict=False))


def test_the_model_is_better_than_the_mean_and_not_better_than_the_teacher(place: Path, inline: dict[str, Any]) -> None:
    stars = ratings(place / "data/ratings/test")["rating"]
    assert inline["metrics_of"] == "test"
    assert inline["teacher_rmse"] < inline["rmse"] < 0.97 * stars.std()
    assert inline["mean_label"] == pytest.approx(stars.mean(), abs=1e-5)


def test_what_is_newest_is_held_out_and_the_best_validation_is_kept(place: Path, inline: dict[str, Any]) -> None:
    rows = ratings(place / "data/ratings/train")
    curve = [
        line["validation"]
        for line in map(json.loads, (place / "inline/metrics.jsonl").read_text().splitlines())
        if "validation" in line
    ]
    newest = rows["rating"][rows["time"] >= np.quantile(rows["time"], 0.95)]
    assert curve[0]["mean_label"] == pytest.approx(newest.mean(), abs=0.01)
    assert inline["validation"]["best"]["rmse"] == min(line["rmse"] for line in curve)
    assert inline["samples"] <= 2 * 0.951 * ROWS


def test_ages_and_years_are_standardised_by_the_rows_that_are_learned_from(place: Path, inline: dict[str, Any]) -> None:
    assert "warnings" not in inline
    features = load_job(place / "inline/job.yaml").data.columns.features
    rows = ratings(place / "data/ratings/train")
    for name in ("age", "year"):
        found = features[name].steps[0].model_dump()
        assert found["mean"] == pytest.approx(rows[name].mean(), rel=0.01)
        assert found["std"] == pytest.approx(rows[name].std(), rel=0.02)


@pytest.mark.slow
def test_workers_validate_as_one_process_does(place: Path, inline: dict[str, Any]) -> None:
    local = trained(place, "local", "--launcher", "local", "--workers", "2")
    assert local["validation"]["best"]["samples"] == inline["validation"]["best"]["samples"]
    assert local["validation"]["best"]["rmse"] == pytest.approx(inline["validation"]["best"]["rmse"], rel=1e-3)
    assert local["rmse"] == pytest.approx(inline["rmse"], rel=1e-3)


def test_the_script_does_the_same_in_python(tmp_path: Path) -> None:
    words = [sys.executable, EXAMPLES / "ratings.py", "4000"]
    done = preloaded.run(words, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "validation RMSE" in done.stdout
    summary = json.loads((tmp_path / "runs/ratings-1/summary.json").read_text())
    assert f"test RMSE {summary['rmse']:.4f}" in done.stdout
    assert summary["teacher_rmse"] < summary["rmse"]
