"""The quality of five models, trained by heterps and in plain PyTorch on the same files. See README.md.

python benchmarks/quality/run.py [--rows 100000] [--seeds 3] [--models ctr_dnn ratings] [--block-rows 65536]
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plain
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch
from sklearn.metrics import roc_auc_score, root_mean_squared_error
from torch.nn import functional

from heterps.config import Job
from heterps.data import reader
from heterps.data.generate import generate
from heterps.launch import train

CLICK = {"dense": [f"I{i}" for i in range(1, 14)], "slots": [f"C{i}" for i in range(1, 27)]}


@dataclass(frozen=True)
class Case:
    """A model of the zoo, the data it is trained on, and the same in plain PyTorch."""

    factory: str
    task: str
    args: dict[str, Any]
    columns: dict[str, Any]
    plain: Any
    dim: int
    loss: plain.Loss = functional.binary_cross_entropy_with_logits
    groups: dict[str, str] = field(default_factory=dict)  # of ids by column; others are groups of their own
    label: str = "label"
    epochs: int = 1
    files: str = "parquet"


TOWER = {"hidden": [64, 32]}
CASES = {
    "ctr_dnn": Case("ctr_dnn", "click", {"embedding_dim": 8, **TOWER}, CLICK, plain.Deep, 8),
    "deepfm": Case("deepfm", "click", {"embedding_dim": 8, **TOWER}, CLICK, plain.FactorizationMachine, 8),
    "two towers": Case(
        "match_net",
        "match",
        {"embedding_dim": 8, **TOWER},
        {
            "dense": [],
            "slots": ["user", "segment", "item", "category", "negative", "negative_category"],
            "same_ids": {"negative": "item", "negative_category": "category"},
        },
        plain.TwoTowers,
        8,
        plain.hinge,
        {"negative": "item", "negative_category": "category"},
    ),
    "din": Case(
        "din",
        "history",
        {"embedding_dim": 16, "max_length": 30, **TOWER},
        {"dense": [], "slots": ["user", "item", "history"], "same_ids": {"history": "item"}},
        plain.Interest,
        16,
        groups={"history": "item"},
    ),
    "ratings": Case(
        "deepfm",
        "ratings",
        {"embedding_dim": 8, **TOWER},
        {
            "labels": {"rating": "mse"},
            "dense": ["age", "year"],
            "slots": ["user", "item", "genres", "hour", "weekday"],
            "features": {
                "age": ["standardise"],
                "year": ["standardise"],
                "hour": {"column": "time", "steps": [{"date": "hour"}]},
                "weekday": {"column": "time", "steps": [{"date": "weekday"}]},
            },
        },
        plain.FactorizationMachine,
        8,
        functional.mse_loss,
        label="rating",
        epochs=2,
        files="tsv",
    ),
}
BATCH_SIZE = 256


def by_heterps(case: Case, data: Path, run: Path, seed: int) -> float:
    """The test metric of a job."""
    job = Job.model_validate(
        {
            "model": {"factory": case.factory, "args": case.args},
            "data": {
                "train": str(data / "train"),
                "test": str(data / "test"),
                "columns": case.columns,
                "batch_size": BATCH_SIZE,
                "epochs": case.epochs,
                "format": {"lists": {"genres": "|"}} if case.files == "tsv" else {},
            },
            "optimizers": {
                "sparse": {"kind": "adagrad", "lr": 0.05},
                "dense": {"kind": "adam", "lr": 0.002},
            },
            "seed": seed,
            "threads": 1,
        }
    )
    summary = train(job, run).summary
    return float(summary["rmse" if case.label == "rating" else "auc"])


def by_torch(case: Case, data: Path, seed: int) -> float:
    """The test metric of a plain loop, by scikit-learn."""
    torch.manual_seed(seed)
    groups = {slot: case.groups.get(slot, slot) for slot in case.columns["slots"]}
    known = columns_of(case, data / "train")
    rows, test = (
        plain.encode(columns, known, groups, case.columns["dense"], case.label)
        for columns in (known, columns_of(case, data / "test"))
    )
    model = case.plain(rows, case.dim)
    plain.fit(model, rows, case.loss, BATCH_SIZE, case.epochs)
    predicted = plain.predict(model, test)
    return float((root_mean_squared_error if case.label == "rating" else roc_auc_score)(test.label.numpy(), predicted))


def columns_of(case: Case, folder: Path) -> plain.Columns:
    """The columns of all files as arrays, read with pyarrow: a missing id is -1, a missing number NaN."""
    if case.files == "tsv":
        tab = pa_csv.ParseOptions(delimiter="\t")
        tables = [pa_csv.read_csv(path, parse_options=tab) for path in sorted(folder.iterdir())]
        found = {name: np.concatenate([t[name].to_numpy() for t in tables]) for name in tables[0].column_names}
        found["genres"] = np.array([np.array(text.split("|")) for text in found["genres"]], object)
        times = found["time"].astype("datetime64[s]")
        found["hour"] = found["time"] % 86_400 // 3600
        found["weekday"] = (times.astype("datetime64[D]").astype(int) + 3) % 7
        return found
    table = pq.read_table(folder)
    columns = {name: table[name] for name in table.column_names}
    ids = {name: columns[name].fill_null(-1) for name in case.columns["slots"] if name != "history"}
    return {name: column.to_numpy() for name, column in (columns | ids).items()}


def compare(case: Case, rows: int, seeds: int, folder: Path) -> tuple[list[float], list[float], float]:
    """The metrics of both over several seeds, and the teacher's."""
    data = folder / case.task
    if not data.exists():
        generate(data, rows, rows // 5, task=case.task, files=case.files)
    info = generate(folder / f"{case.task}-info", 1, rows // 5, task=case.task, force=True).test
    assert info is not None
    teacher = info.teacher_rmse if info.teacher_auc is None else info.teacher_auc
    assert teacher is not None
    ours = [by_heterps(case, data, Path(tempfile.mkdtemp(dir=folder)) / "run", seed) for seed in range(seeds)]
    return ours, [by_torch(case, data, seed) for seed in range(seeds)], teacher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--block-rows", type=int, default=reader.BLOCK_ROWS, help="rows that heterps shuffles at once")
    chosen = parser.parse_args()
    reader.BLOCK_ROWS = chosen.block_rows
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        print("| model | data | metric | heterps | plain PyTorch | teacher |\n|---|---|---|---:|---:|---:|")
        for name in chosen.models:
            case = CASES[name]
            *found, teacher = compare(case, chosen.rows, chosen.seeds, Path(folder))
            shown = " | ".join(f"{np.mean(values):.4f} ± {np.std(values):.4f}" for values in found)
            metric = "RMSE" if case.label == "rating" else "AUC"
            print(f"| {name} | {case.task} | {metric} | {shown} | {teacher:.4f} |", flush=True)


if __name__ == "__main__":
    main()
