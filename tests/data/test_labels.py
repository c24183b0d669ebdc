"""Labels and weights of files: values as they are, and advice that fits the values that are wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.config import Schema
from heterps.data.batch import Batch
from heterps.data.reader import Reader
from heterps.errors import ConfigError, DataError


def read(folder: Path, schema: dict[str, Any], **columns: list[Any]) -> Batch:
    num_rows = len(next(iter(columns.values())))
    pq.write_table(pa.table({"a": np.arange(num_rows, dtype=np.float32), **columns}), folder / "data.parquet")
    columns_of = Schema(dense=("a",), slots=(), **schema)
    (batch, _), *_ = Reader(str(folder / "data.parquet"), columns_of, batch_size=num_rows, shuffle=False).read()
    return batch


def test_numbers_are_read_as_they_are(tmp_path: Path) -> None:
    batch = read(tmp_path, {"labels": {"y": "mse"}}, y=[-1.5, 3, 1e6])
    np.testing.assert_array_equal(batch.label, np.array([-1.5, 3, 1e6], np.float32))


def test_several_labels_and_weights_are_columns_in_the_order_of_the_schema(tmp_path: Path) -> None:
    labels = {"rating": {"loss": "mse", "missing": "mask"}, "click": "binary"}
    batch = read(tmp_path, {"labels": labels, "weight": "w"}, click=[0, 1, 1], w=[1, 0, 2.5], rating=[4, None, 2])
    np.testing.assert_array_equal(batch.label, [[4, 0, 1], [np.nan, 1, 0], [2, 1, 2.5]])
    assert len(batch) == 3


@pytest.mark.parametrize(
    ("schema", "values", "message"),
    [
        ({}, [0, 1, 4], r"a label is 0 or 1, this one is 4; if these are classes, set data\.columns\.num_classes: 5 or "
                        r"more; if they are amounts or ratings, data\.columns\.labels: \{y: mse\}"),
        ({}, [0, 0.5], r"this one is 0\.5; values that are not whole are learned as numbers with data"),
        ({}, [2, 3.5], r"this one is 2\.0; values that are not whole are learned as numbers with"),
        ({}, [1, -1], r"this one is -1; write 0 in place of -1"),
        ({}, [1, -3], r"this one is -3; number the classes from 0 on"),
        ({}, [1, None], r"this one is null; write a label, or leave such samples out of its loss: "
                        r"data\.columns\.labels: \{y: \{loss: binary, missing: mask\}\}"),
        ({}, [1, float("inf")], r"this one is inf; write a finite number"),
        ({"num_classes": 3}, [0, 3], r"from 0 to 2, this one is 3; if these are classes, set .*num_classes: 4"),
        ({"labels": {"y": {"loss": "classes", "num_classes": 3}}}, [7, 0], r"\{y: \{loss: classes, num_classes: 8"),
        ({"labels": {"y": "mse"}}, [1, 1e300], r"a finite number, this one is 1e\+300; write a finite number"),
        ({"labels": {"y": "huber"}}, [1, None], r"null; .*\{loss: huber, missing: mask\}"),
        ({"labels": {"y": "poisson"}}, [1, -2], r"count or a rate.*this one is -2; values below 0 .*\{y: mse\}"),
        ({"labels": {"y": {"loss": "binary", "missing": "mask"}}}, [None, 2], r"this one is 2"),
    ],
)  # fmt: skip
def test_wrong_labels_come_with_the_advice_that_fits(
    tmp_path: Path, schema: dict[str, Any], values: list[Any], message: str
) -> None:
    schema = schema if "labels" in schema else {"label": "y", **schema}
    with pytest.raises(DataError, match=rf"data\.parquet: row \d .*column y: .*{message}"):
        read(tmp_path, schema, y=values)


@pytest.mark.parametrize("weight", [-1.0, None, float("nan"), float("inf")])
def test_weights_are_finite_and_not_negative(tmp_path: Path, weight: float | None) -> None:
    with pytest.raises(DataError, match=r"row 1 .*column w: a weight is a finite number, at least 0, this one is"):
        read(tmp_path, {"label": "y", "weight": "w"}, y=[0, 1], w=[1.0, weight])


def test_labels_of_another_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column y has type string, but data\.columns\.labels needs a number"):
        read(tmp_path, {"labels": {"y": "mse"}}, y=["a", "b"])
    with pytest.raises(DataError, match=r"column w has type string, but data\.columns\.weight needs a number"):
        read(tmp_path, {"label": "y", "weight": "w"}, y=[0, 1], w=["a", "b"])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"label": "x", "labels": {"y": "mse"}}, "label: x must be one of the labels: y"),
        ({"labels": {"y": "mse"}, "num_classes": 4}, r"labels: \{y: \{loss: classes, num_classes: 4\}\}"),
        ({"labels": {"a": "mse"}}, "named twice: a"),
        ({"label": "y", "weight": "y"}, "named twice: y"),
        ({"labels": {"y": "mae"}}, "loss"),
        ({"labels": {"y": {"loss": "huber", "delta": 0}}}, "greater than 0"),
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schema(dense=("a",), slots=(), **schema)


def test_a_schema_survives_being_written_out() -> None:
    schema = Schema(labels={"rating": {"loss": "huber", "delta": 2}, "click": "binary"}, weight="w")
    assert Schema.model_validate(schema.model_dump()) == schema
    assert schema.label == "rating"
    assert schema.target_columns == ("rating", "click", "w")
    assert Schema(num_classes=3, label="y").all_labels["y"].num_scores == 3


WITHOUT_PANDAS = """
import sys
from heterps.config import Schema
from heterps.data.reader import Reader

schema = Schema(dense=("a",), slots=("s",), label="label")
list(Reader(sys.argv[1], schema, batch_size=2, shuffle=False).read())
print("pandas" in sys.modules)
"""


def test_reading_does_not_import_pandas(tmp_path: Path) -> None:
    """Every worker would begin about half a second later where pandas is installed."""
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"a": [1.0, None, 3.0], "s": ["x", None, "y"], "label": [0, 1, 1]}), path)
    words = [sys.executable, "-c", WITHOUT_PANDAS, str(path)]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (found.stdout.strip(), found.returncode) == ("False", 0), found.stderr
