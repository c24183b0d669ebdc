"""Features by the command line: fitted once, the same on workers, kept by the run, and what they are worth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import heterps

from heterps.checkpoint import load_latest
from heterps.cli import main
from heterps.config import load_job
from heterps.profiling.profile import load_profile

Command = Callable[..., tuple[int, str]]

JOB = """
name: scaled
model: {factory: ctr_dnn, args: {embedding_dim: 4, hidden: [16]}}
data:
  train: train.parquet
  test: test.parquet
  batch_size: 100
  columns:
    dense: [year, price]
    slots: [hour, decade, user_hour]
    features:
      year: [standardise]
      price: [log, standardise]
      hour: {column: time, steps: [date: hour]}
      decade: {column: year, steps: [bucketise: 10]}
      user_hour: {cross: [user, hour]}
optimizers: {dense: {kind: adam, lr: 0.01}}
threads: 1
metrics_every_samples: 1000
"""
RAW = (
    JOB.split("    features:")[0].replace("hour, decade, user_hour", "user")
    + "optimizers:"
    + JOB.split("optimizers:")[1]
)


def write(path: Path, num_rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    year = random.integers(1900, 2000, num_rows)
    price = np.exp(3 * random.standard_normal(num_rows))
    label = random.random(num_rows) < 1 / (1 + np.exp(-(year - 1950) / 15 - np.log(price) / 2))
    columns = {"label": label, "year": year, "price": price, "user": random.integers(0, 9, num_rows)}
    columns["time"] = 1_700_000_000 + random.integers(0, 10**7, num_rows)
    pq.write_table(pa.table(columns), path, row_group_size=500)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with data, a job with features, the same without, and a run of the first."""
    place = tmp_path_factory.mktemp("features")
    write(place / "train.parquet", 4_000, 1)
    write(place / "test.parquet", 1_000, 2)
    (place / "job.yaml").write_text(JOB)
    (place / "raw.yaml").write_text(RAW)
    done = heterps("train", "job.yaml", "--run", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "year, price, decade: fitted on 4,000 rows" in done.stdout + done.stderr
    return place


@pytest.fixture
def command(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command in this process, which starts quicker: its exit code, and all that it prints in one line."""
    monkeypatch.chdir(place)

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = capsys.readouterr()
        return int(ended.value.code or 0), " ".join((said.out + said.err).split())

    return run


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_the_run_and_its_checkpoints_keep_the_numbers(place: Path) -> None:
    years = pq.read_table(place / "train.parquet", columns=["year"])["year"].to_numpy()
    columns = load_job(place / "run/job.yaml").data.columns
    found = columns.features["year"].steps[0].model_dump()
    assert (found["mean"], found["std"]) == pytest.approx((years.mean(), years.std()), rel=1e-12)
    saved = load_latest(place / "run/checkpoints").progress["features"]
    assert saved == columns.model_dump(mode="json")["features"]


def test_workers_train_with_the_numbers_of_the_coordinator(place: Path) -> None:
    done = heterps("train", "job.yaml", "--run", "local", "--launcher", "local", cwd=place)
    assert done.returncode == 0, done.stderr
    one, other = summary_of(place / "run"), summary_of(place / "local")
    assert other["log_loss"] == pytest.approx(one["log_loss"], rel=1e-4)
    assert other["train"]["log_loss"] == pytest.approx(one["train"]["log_loss"], rel=1e-4)


def test_a_resumed_run_does_not_fit_again(place: Path, command: Command) -> None:
    assert command("train", "job.yaml", "--run", "again")[0] == 0
    before = load_job(place / "again/job.yaml").data.columns
    longer = JOB.replace("batch_size: 100", "batch_size: 100\n  epochs: 2")
    (place / "longer.yaml").write_text(longer)
    code, said = command("train", "longer.yaml", "--run", "again", "--resume")
    assert code == 0, said
    assert "fitted" not in said
    assert summary_of(place / "again")["samples"] == 8_000
    assert load_job(place / "again/job.yaml").data.columns == before
    (place / "other.yaml").write_text(longer.replace("[log, standardise]", "[log]"))
    code, said = command("train", "other.yaml", "--run", "again", "--resume")
    assert code != 0
    assert "data.columns.features.price" in said


def test_unscaled_columns_are_named_and_cost_quality(place: Path, command: Command) -> None:
    code, said = command("train", "raw.yaml", "--run", "raw")
    assert code == 0, said
    assert said.count("dense columns are far from unit scale") == 2, "once before it trains, once in the summary"
    summary = summary_of(place / "raw")
    assert "features: {year: [standardise], price: [log, standardise]}" in summary["warnings"][0]
    assert not any("unit scale" in warning for warning in summary_of(place / "run").get("warnings", []))
    assert summary_of(place / "run")["auc"] > summary["auc"] + 0.02


def test_a_profile_of_the_job_fits_its_features_too(place: Path, command: Command) -> None:
    code, said = command("profile", "job.yaml", "--out", "profile.json", "--budget", "0.1", "--units", "parts")
    assert code == 0, said
    assert load_profile(place / "profile.json").batch_size == 100
