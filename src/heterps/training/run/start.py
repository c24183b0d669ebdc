"""Read what a job starts from: the checkpoint of another model, and files of rows by original id."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from heterps.checkpoint import Snapshot, load
from heterps.config import Job, RowFile
from heterps.data.columns import find_id_kinds
from heterps.data.sources import open_dataset, open_paths
from heterps.data.vectors import read_vectors
from heterps.errors import ConfigError
from heterps.model.build import build_model
from heterps.nn import model_tables
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.training.model.start import Given, StartOutcome, starting_snapshot, tables_of_slot
from heterps.training.model.tabled import fresh_snapshot
from heterps.training.run.trained import find_checkpoint


def job_start(
    job: Job, model: nn.Module, tables: TableSpecs, progress: dict[str, Any]
) -> tuple[Snapshot, StartOutcome]:
    """The snapshot of clock 0 that a job with a `start` begins from, and what was taken from where.

    model   as it was built
    tables  all of them, in stages or not
    """
    assert job.start is not None
    start, source = job.start, None
    if start.model is not None:
        path = find_checkpoint(start.model)
        start, source = start.model_copy(update={"model": str(path)}), load(path)
    specs = {spec.name: spec for spec in tables.sparse}
    given: dict[str, Given] = {}
    for slot, file in start.rows.items():
        spec = specs[_table_of(model, slot, file)]
        keys, vectors = _read(job, slot, file, spec)
        if spec.name in given:  # of another slot, whose keys are others
            others = given[spec.name]
            keys, vectors = np.concatenate([others[0], keys]), np.concatenate([others[1], vectors])
        given[spec.name] = keys, vectors
    return starting_snapshot(fresh_snapshot(model, tables, progress), specs, start, source, given)


def check_start(job: Job) -> None:
    """Raise what is wrong with the start of a job, before anything else is begun."""
    if job.start is not None:
        model = build_model(job.model, job.data.columns, job.seed)
        job_start(job, model, model_tables(model, job.optimizers, tables=job.tables, seed=job.seed), {})


def _table_of(model: nn.Module, slot: str, file: RowFile) -> str:
    tables = tables_of_slot(model, slot)
    if not tables:
        raise ConfigError(f"start.rows: {slot} is no slot of an embedding of {type(model).__name__}.")
    if file.table is None and len(tables) > 1:
        raise ConfigError(
            f"start.rows.{slot}: the slot is in several tables: say in `table` which: {', '.join(tables)}."
        )
    if file.table is not None and file.table not in tables:
        raise ConfigError(f"start.rows.{slot}.table: the slot is not in {file.table}, but in {', '.join(tables)}.")
    return file.table or tables[0]


def _read(job: Job, slot: str, file: RowFile, spec: TableSpec) -> Given:
    columns = job.data.columns
    if (feature := columns.features.get(slot)) is not None and (feature.steps or feature.cross):
        raise ConfigError(f"start.rows.{slot}: the ids of the slot are made by its feature, so that no file has them.")
    kind = find_id_kinds(open_paths(job.data, job.data.train), columns).id_kinds.get(slot)
    dataset = open_dataset(file.file, storage=job.data.storage)
    keys, vectors = read_vectors(dataset, file.id, file.vector, columns.same_ids.get(slot, slot), kind)
    if vectors.shape[1] != spec.dim and job.start is not None and job.start.dims == "refuse":
        raise ConfigError(
            f"start.rows.{slot}: vectors of {file.file} have {vectors.shape[1]} values, rows of table {spec.name} have "
            f"{spec.dim}. Set start.dims to overlap or project, or change the model."
        )
    return keys, vectors
