"""How good an export is: its scores beside those of the trained model, and what rounded rows cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.checkpoint.saved_rows import SavedTable
from heterps.config import Job
from heterps.data.frames import TableFile
from heterps.data.sources import Dataset, open_paths
from heterps.errors import DataError, ModelError
from heterps.serving.export_files import Values, rounded
from heterps.serving.predict import CheckpointPredictor, predict_groups
from heterps.serving.score import Scorer
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.in_use import SavedModel
from heterps.training.run.evaluation import evaluate_test, evaluate_validation
from heterps.training.run.observer import Observer

CHECK_ROWS = 256
TOLERANCE = 1e-5
"""Largest difference of scores that passes, absolute or relative: rounding errors of float32 are below it."""


class RoundedTable(SavedTable):
    """The rows of a table as an export of fewer bits has them. It shares the files of the table."""

    def __init__(self, table: SavedTable, kind: Values) -> None:
        self.__dict__.update(table.__dict__)
        self._kind: Values = kind

    def pull(self, keys: KeyArray) -> tuple[FloatArray, NDArray[np.bool_]]:
        values, is_known = super().pull(keys)
        values[is_known] = rounded(values[is_known], self._kind)
        return values, is_known


def round_rows(model: SavedModel, kind: Values) -> None:
    """Let a model read its rows as an export of fewer bits has them."""
    for name, table in model.rows.tables.items():
        model.rows.tables[name] = RoundedTable(table, kind)


def quality(job: Job, model: SavedModel) -> dict[str, Any] | None:
    """The main figure of a model on the job's test set, or else on its samples for validation; None without any."""
    found: Metrics
    if job.data.test is not None:
        found, data = evaluate_test(job, model, Observer(), lambda: None), "test"
    elif job.data.validation is not None:
        found, data = evaluate_validation(job, model, Observer(), lambda: None), "validation"
    else:
        return None
    return {"data": data, "metric": found.main, "value": round(found[found.main], 6)}


def check(job: Job, predictor: CheckpointPredictor, scorer: Scorer) -> str | None:
    """Raise ModelError unless an export scores training data as the model itself does.

    Returns a sentence where that could not be found out, since the data is not there.
    """
    data = job.data
    try:
        group = open_paths(data, data.train).row_groups[0]
        table = group.file.read(group.index, predictor.columns).slice(0, CHECK_ROWS)
    except (DataError, IndexError):
        return "The scores of the export were not checked, since the training data is not there."
    own = pa.concat_tables(predict_groups(predictor, Dataset((TableFile(table),))))
    exported = scorer.score(table)
    for name in exported.column_names:
        expected, found = _numbers(own[name]), _numbers(exported[name])
        if (wrong := ~np.isclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)).any():
            at = int(np.argmax(wrong))
            raise ModelError(
                f"the export would be wrong: of the first {len(table)} rows of the training data it scores one "
                f"{found[at]:.6g}, and the model itself {expected[at]:.6g} ({name}). Does the model depend on more "
                "than the columns and rows of a sample: on other samples, on random numbers, on the lengths of lists "
                "(pooling 'none')?"
            )
    return None


def _numbers(column: Any) -> NDArray[np.float64]:
    column = column.combine_chunks()
    flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column  # without lists that are null
    return np.asarray(flat.to_numpy(zero_copy_only=False), np.float64)
