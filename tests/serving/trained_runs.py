"""Runs of small models, trained in this process, and what the trained model itself says of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from heterps.checkpoint import latest, save
from heterps.config import Job
from heterps.data.batch import Slots
from heterps.data.columns import check_columns
from heterps.data.decode import Decoder
from heterps.data.fit import fit_job
from heterps.data.reader import Position, open_reader
from heterps.data.sources import open_dataset
from heterps.lookups import prepared
from heterps.model.build import build_model
from heterps.training.model.in_use import SavedModel
from heterps.training.model.objectives import Objectives
from heterps.training.model.trainer import Trainer
from heterps.training.run.folder import Run


def train_run(folder: Path, table: pa.Table, model: dict[str, Any], columns: dict[str, Any], **fields: Any) -> Path:
    """Train one epoch over a table and save a checkpoint; returns the folder of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "train.parquet")
    data = {"train": str(folder / "train.parquet"), "columns": columns, "batch_size": 32, **fields.pop("data", {})}
    job = fit_job(Job.model_validate({"name": folder.name, "model": model, "data": data, "threads": 1, **fields}))
    run = Run(folder / "run")
    run.create(job)
    train_further(run.folder, job)
    return run.folder


def train_further(run: Path, job: Job, from_checkpoint: Path | None = None, epoch: int = 0) -> Path:
    """Train one more epoch of a run from a checkpoint, and save another."""
    from heterps.checkpoint import load

    module = build_model(job.model, job.data.columns, job.seed)
    with Trainer(module, job.optimizers, tables=job.tables, seed=job.seed, columns=job.data.columns) as trainer:
        if from_checkpoint is not None:
            trainer.restore(load(from_checkpoint))
        for batch, _ in open_reader(job).read(Position(epoch=epoch)):
            trainer.step(batch)
        return save(run / "checkpoints", trainer.snapshot(trainer.samples, {}))


def own_scores(run: Path, table: pa.Table, folder: Path, checkpoint: Path | None = None) -> dict[str, np.ndarray]:
    """What the model of a run says of samples, by heterps' own reader and the model as it was trained; NaN: skipped."""
    from heterps.config import load_job

    job = load_job(run / "job.yaml")
    schema = job.data.columns
    for name in schema.target_columns:  # the reader wants labels
        if name not in table.column_names:
            table = table.append_column(name, pa.array(np.zeros(len(table), np.int64)))
    pq.write_table(table, folder / "asked.parquet")
    dataset = open_dataset(str(folder / "asked.parquet"))
    decoder = Decoder(schema, check_columns(dataset, schema))
    objectives, parts = Objectives(schema), []
    with SavedModel(job, checkpoint or latest(run / "checkpoints")) as saved, torch.no_grad():
        saved.model.eval()
        for group in dataset.row_groups:
            block = decoder.decode(group)
            slots = prepared(Slots(schema.slots, block.keys, block.offsets))
            found = objectives.predictions(saved.model, saved.model(torch.from_numpy(block.dense), slots))
            skipped = np.setdiff1d(np.arange(len(block.dense)), block.rows)
            arrays = {name: value.numpy().copy() for name, value in found.items()}
            for array in arrays.values():
                array[skipped] = np.nan
            parts.append(arrays)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def as_arrays(scores: pa.Table) -> dict[str, np.ndarray]:
    """The columns of scores as arrays; null is NaN."""
    found = {}
    for name in scores.column_names:
        rows = scores[name].to_pylist()
        width = len(next((row for row in rows if isinstance(row, list)), []))
        none = [np.nan] * width if width else np.nan
        found[name] = np.array([none if row is None else row for row in rows], np.float64)
    return found


def assert_equal(scores: pa.Table, expected: dict[str, np.ndarray], tolerance: float = 1e-6) -> None:
    found = as_arrays(scores)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance, err_msg=name)
