"""Models with two towers: graphs of users and of items apart, the vectors of all items, and an index of them.

    user columns --> user graph --> vector --+
                                             +--> inner product: how well the item suits the user
    item columns --> item graph --> vector --+    items.parquet: columns and vector of each; items.faiss: the same rows

A model has two towers if it has methods `user_vector(dense, slots)` and `item_vector(dense, slots)` that return
vectors [B, width].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor, nn

from heterps.config import Job
from heterps.data.batch import Slots
from heterps.data.sources import RowGroup, open_paths
from heterps.errors import ConfigError, DataError
from heterps.serving.export_files import Draft
from heterps.serving.graph import Forward
from heterps.serving.predict import CheckpointPredictor
from heterps.serving.score import Scorer
from heterps.serving.source import open_data
from heterps.training.model.objectives import Objectives

SIDES = ("user", "item")


def has_towers(model: nn.Module) -> bool:
    return all(callable(getattr(type(model), f"{side}_vector", None)) for side in SIDES)


def forwards(model: nn.Module, job: Job) -> dict[str, Forward]:
    """What is exported of a model, by the name of the graph: its scores, and vectors if it has two towers."""
    objectives = Objectives(job.data.columns)

    def scores(model: nn.Module, dense: Tensor, slots: Slots) -> dict[str, Tensor]:
        return objectives.predictions(model, model(dense, slots))

    def of_side(side: str) -> Forward:
        return lambda model, dense, slots: {"vector": getattr(model, f"{side}_vector")(dense, slots)}

    return {"score": scores, **({side: of_side(side) for side in SIDES} if has_towers(model) else {})}


def write_items(
    draft: Draft, scorer: Scorer, job: Job, predictor: CheckpointPredictor, items: str | None, index: bool
) -> int:
    """Write items.parquet and, if asked for, items.faiss; returns the number of items.

    Items without a vector are left out: a value is missing, and the job says that such samples are skipped.
    """
    table = _items(scorer, job, predictor, items)
    table = table.append_column("vector", scorer.vectors(table, "item")["vector"])
    table = table.filter(table["vector"].is_valid())
    if not len(table):
        raise DataError(
            f"no item of {items or 'the training data'} has a vector: each lacks a value that the model needs, and "
            "the job skips such samples (data.columns: dense_missing, slot_missing). Name other items with --items."
        )
    with draft.file("items.parquet") as file:
        pq.write_table(table, pa.PythonFile(file, mode="w"), compression="zstd")
    if index:
        faiss = require_faiss()
        column = table["vector"].combine_chunks()
        matrix = np.asarray(column.flatten()).reshape(len(column), -1)
        found = faiss.IndexFlatIP(matrix.shape[1])
        found.add(matrix)
        draft.write("items.faiss", faiss.serialize_index(found).tobytes())
    return len(table)


def require_faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ConfigError("--index needs FAISS: pip install 'heterps[faiss]'.") from None
    return faiss


def _items(scorer: Scorer, job: Job, predictor: CheckpointPredictor, items: str | None) -> pa.Table:
    """The columns of all items: of a data set of items as it is, or of the training data, each item once."""
    data, graph = job.data, scorer.manifest["graphs"]["item"]
    names = list(data.columns.sources((*(data.columns.dense if graph["dense"] else ()), *graph["slots"])))
    if items is not None:
        return pa.concat_tables(_columns(group, names) for group in open_data(predictor, items).row_groups)
    found: list[pa.Table] = []
    for group in open_paths(data, data.train).row_groups:
        try:
            found = [pa.concat_tables([*found, _columns(group, names)]).group_by(names).aggregate([]).combine_chunks()]
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise DataError(
                f"{group.file.address}: the items of the training data cannot be told apart ({error}). Name a data set "
                "that has each item once, with --items."
            ) from None
    return pa.concat_tables(found).drop_null()


def _columns(group: RowGroup, names: list[str]) -> pa.Table:
    if missing := [name for name in names if name not in group.file.schema.names]:
        raise DataError(f"{group.file.address}: items need the column {missing[0]}, which it does not have.")
    return group.file.read(group.index, tuple(names)).select(names)
