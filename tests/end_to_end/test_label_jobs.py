"""Ratings, counts, several labels, weights and rankings through the command line, inline and on workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from heterps.cli import main

N_TRAIN, N_TEST = 600, 200
MODELS = """
import torch
from torch import nn
from heterps.nn import SparseEmbedding

class Net(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.rows = SparseEmbedding(schema.slots, 4)
        self.heads = nn.ModuleDict({name: nn.Linear(schema.num_dense + 8, label.num_scores)
                                    for name, label in schema.all_labels.items()})

    def forward(self, dense, slots):
        x = torch.cat([dense, self.rows(slots).flatten(1)], dim=1)
        return {name: head(x) for name, head in self.heads.items()}

class Sigmoid(Net):
    def forward(self, dense, slots):
        return super().forward(dense, slots)["click"].squeeze(1).sigmoid()

class Untraceable(Sigmoid):
    def forward(self, dense, slots):
        if dense.sum() > 1e9:
            return dense[:, 0]
        return super().forward(dense, slots)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "label_models.py").write_text(MODELS)
    for name, num_rows in (("train", N_TRAIN), ("test", N_TEST)):
        random = np.random.default_rng(num_rows)
        user, item = random.integers(0, 20, (2, num_rows))
        liking = (item % 5 - 2) / 2 + (user % 3 - 1) / 4 + 0.3 * random.normal(size=num_rows)
        click = liking > 0
        table = {
            "user": user, "item": item, "a": random.normal(size=num_rows), "click": click.astype(int),
            "rating": pa.array(3 + liking, mask=~click), "visits": random.poisson(np.exp(liking)),
            "w": random.integers(0, 3, num_rows),
        }  # fmt: skip
        pq.write_table(pa.table(table), f"{name}.parquet", row_group_size=200)
    return tmp_path


def write_job(name: str, columns: dict[str, Any], model: str = "Net", **more: Any) -> Path:
    data = {"train": "train.parquet", "test": "test.parquet", "batch_size": 50, "epochs": 3}
    columns = {"dense": ["a"], "slots": ["user", "item"], **columns}
    optimizers = {"sparse": {"kind": "adagrad", "lr": 0.3}, "dense": {"kind": "adam", "lr": 0.05}}
    job = {
        "name": name, "model": {"factory": f"label_models:{model}"}, "data": data | {"columns": columns},
        "optimizers": optimizers, "threads": 1, "metrics_every_samples": 300, **more,
    }  # fmt: skip
    path = Path(f"{name}.yaml")
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


def code_of(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def run(capsys: pytest.CaptureFixture[str], job: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The summary of a run by the command line, and what was printed."""
    folder = job.stem
    assert code_of("train", str(job), "--run", folder, *options) == 0
    printed = capsys.readouterr()
    return json.loads(Path(folder, "summary.json").read_text()), printed.out + printed.err


LABELS = {
    "click": {"loss": "binary", "weight": 0.5},
    "rating": {"loss": "huber", "delta": 0.5, "missing": "mask"},
    "visits": "poisson",
}


def test_several_labels_with_weights_and_a_ranking_inline_and_on_workers(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"labels": LABELS, "weight": "w", "user": "user", "top_k": [1, 5]}
    inline, text = run(capsys, write_job("several", columns))
    by_workers = write_job("workers", columns, threads=2, workers={"channel": "memory"})
    local, _ = run(capsys, by_workers, "--launcher", "local")
    figures = {name for name in inline if "/" in name} | {"loss"}
    assert {"click/auc", "click/gauc", "click/ndcg@5", "click/hit_rate@1", "rating/ndcg@5", "visits/deviance"} < figures
    for name in figures:
        assert local[name] == pytest.approx(inline[name], rel=1e-3, abs=1e-4), name
    assert inline["click/auc"] > 0.7
    assert inline["click/gauc"] > 0.6
    assert inline["click/users"] == 20
    assert "users" not in "".join(inline["train"]), "training does not rank"
    for shown in ("click: AUC", "click: GAUC", "click: Hit rate@5", "rating: MAE", "visits: Deviance", "Loss "):
        assert shown in text
    report = Path("several/report.html").read_text()
    for shown in ("click: AUC", "rating: NDCG@5", "visits: Mean prediction"):
        assert shown in report
    lines = [json.loads(line) for line in Path("several/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert "click/auc" in lines[0]


def test_a_resumed_run_has_the_rankings_of_one_that_was_never_interrupted(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"label": "click", "user": "user", "top_k": [5]}
    more = {"validation": {"every_samples": 300, "metric": "gauc"}}
    job = write_job("halves", columns, "Sigmoid", **more)
    text = job.read_text().replace("test: test.parquet", "test: test.parquet\n  validation: test.parquet")
    job.write_text(text.replace("epochs: 3", "epochs: 1"))
    run(capsys, job)
    job.write_text(text)
    resumed, _ = run(capsys, job, "--resume")
    whole, _ = run(capsys, job.rename("whole.yaml"))
    ranked = ("users", "gauc", "ndcg@5", "hit_rate@5")
    assert [resumed[name] for name in ranked] == [whole[name] for name in ranked]
    assert resumed["validation"] == whole["validation"]
    assert 0.5 < whole["validation"]["best"]["gauc"] < 1.0


def test_test_figures_are_those_of_the_rows(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that learns nothing predicts what it began with: figures follow from the labels alone."""
    still = {"sparse": {"kind": "sgd", "lr": 1e-9}, "dense": {"kind": "sgd", "lr": 1e-9}}
    columns = {"labels": {"rating": {"loss": "mse", "missing": "mask"}}, "weight": "w"}
    summary, text = run(capsys, write_job("still", columns, optimizers=still))
    table = pq.read_table("test.parquet")
    rating, weight = (table[name].to_numpy().astype(np.float64) for name in ("rating", "w"))
    rated = ~np.isnan(rating)
    mean = np.average(rating[rated], weights=weight[rated])
    assert summary["mean_label"] == pytest.approx(mean, rel=1e-5)
    spread = np.average((rating[rated] - mean) ** 2, weights=weight[rated])
    assert summary["r2"] == pytest.approx(1 - summary["rmse"] ** 2 / spread, rel=1e-3)
    assert summary["loss"] == pytest.approx(summary["rmse"] ** 2, rel=1e-4)
    assert "RMSE" in text
    assert "no better than always saying the mean label" in text


def test_a_resumed_run_of_several_labels_equals_one_that_was_not_stopped(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"labels": LABELS, "weight": "w"}
    whole, _ = run(capsys, write_job("whole", columns))
    job = write_job("resumed", columns, checkpoint={"every_samples": 600})
    short = yaml.safe_load(job.read_text())
    run(capsys, job)
    for checkpoint in sorted(Path("resumed/checkpoints").iterdir())[1:]:
        for file in sorted(checkpoint.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        checkpoint.rmdir()
    Path("resumed.yaml").write_text(yaml.safe_dump(short))
    resumed, _ = run(capsys, job, "--resume")
    assert resumed["restarts"] == 1
    for name in ("loss", "click/auc", "rating/mae", "visits/deviance"):
        assert resumed[name] == whole[name], name
        assert resumed["train"][name] == pytest.approx(whole["train"][name], rel=1e-6), name


@pytest.mark.parametrize("model", ["Sigmoid", "Untraceable"])
def test_a_model_that_outputs_probabilities_is_warned_about(
    place: Path, capsys: pytest.CaptureFixture[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps.training.metrics.binary.LEAST_TO_JUDGE", 150)
    summary, text = run(capsys, write_job("proba", {"label": "click"}, model))
    (warning,) = summary["warnings"]
    assert "click" in warning
    assert "return what goes into the sigmoid" in warning
    assert " ".join(text.split()).count("return what goes into the sigmoid") == 2, "when it is noticed, and at the end"
    assert "return what goes into the sigmoid" in Path("proba/report.html").read_text()
    logits, _ = run(capsys, write_job("logits", {"label": "click"}))
    assert "warnings" not in logits


def test_an_error_in_the_labels_of_a_job_says_what_is_allowed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write_job("wrong", {"labels": {"rating": {"loss": "hubre"}}})
    assert code_of("train", str(job)) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "data.columns.labels.rating.loss: must be one of: binary, classes, mse, huber, poisson" in text
    assert code_of("train", str(write_job("nulls", {"labels": {"rating": "mse"}}))) != 0
    assert "missing: mask" in " ".join(capsys.readouterr().err.split())
