"""Columns without any value are named before training."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heterps.config import Schema
from heterps.data.missing import empty_columns
from heterps.data.sources import open_dataset

NAN = float("nan")


def test_columns_of_nulls_nans_and_empty_lists_are_named(tmp_path: Path) -> None:
    columns = {
        "label": [0, 1, 0],
        "x": [1.0, None, NAN],
        "nan": [NAN, NAN, None],
        "null": pa.nulls(3),
        "bag": [[], None, [1]],
        "bare": pa.array([[], None, [None]], pa.list_(pa.int64())),
        "unused": pa.nulls(3),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    dataset = open_dataset(str(tmp_path))
    text = empty_columns(dataset, Schema(dense=("x", "nan"), slots=("null", "bag", "bare")))
    assert text is not None
    assert text.startswith("nan, null, bare: every value is missing in 3 rows of the training data.")
    assert empty_columns(dataset, Schema(dense=("x",), slots=("bag",))) is None
