"""Small models of the zoo with tables of samples for them: what exports are tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from zoo_cases import CASES, SIDE

NAMES = tuple(CASES)


def samples(name: str, num_rows: int, seed: int = 0, num_ids: int = 30) -> pa.Table:
    """Samples of a model of the zoo; some ids and numbers are missing, and histories are lists."""
    schema, _ = CASES[name]
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {label: rng.integers(0, 2, num_rows) for label in schema.target_columns}
    for column in schema.dense:
        if column in schema.widths:
            flat = rng.standard_normal(num_rows * SIDE * SIDE).astype(np.float32)
            columns[column] = pa.FixedSizeListArray.from_arrays(pa.array(flat), SIDE * SIDE)
        else:
            columns[column] = pa.array(rng.standard_normal(num_rows), mask=rng.random(num_rows) < 0.1)
    for column in schema.slots:
        if column == "history":
            lists = [rng.integers(0, num_ids, rng.integers(0, 9)).tolist() for _ in range(num_rows)]
            columns[column] = pa.array([None if rng.random() < 0.1 else ids for ids in lists], pa.list_(pa.int64()))
        else:
            columns[column] = pa.array(rng.integers(0, num_ids, num_rows), mask=rng.random(num_rows) < 0.1)
    return pa.table(columns)


def job_parts(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields `model` and `data.columns` of a job for a model of the zoo."""
    schema, args = CASES[name]
    lists = {key: list(value) if isinstance(value, tuple) else value for key, value in args.items()}
    return {"factory": name, "args": lists}, schema.model_dump(mode="json")
