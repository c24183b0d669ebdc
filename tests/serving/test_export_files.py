"""The files of an export: what is too large for them is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from heterps.checkpoint import disk
from heterps.errors import ModelError
from heterps.serving.export_files import RowsFile, Values


@pytest.mark.parametrize(("values", "largest"), [("fp32", 1e30), ("fp16", 65504.0), ("int8", 1e30)])
def test_values_within_the_range_of_a_kind_are_written(values: Values, largest: float, tmp_path: Path) -> None:
    with disk.new_file(tmp_path / "rows.parquet") as file:
        rows = RowsFile(file, values)
        rows.add("embedding", np.array([3], np.uint64), np.array([[1.0, -largest]], np.float32))
        rows.close()
    assert np.isfinite(pq.read_table(tmp_path / "rows.parquet")["values"].to_pylist()).all()


def test_a_value_that_fp16_cannot_hold_is_refused(tmp_path: Path) -> None:
    keys, values = np.array([3, 4], np.uint64), np.array([[1.0, 2.0], [-70000.0, np.inf]], np.float32)
    with (
        pytest.raises(ModelError, match=r"table embedding has a value of 70000, but fp16 ends at 65504\. .*fp32"),
        disk.new_file(tmp_path / "rows.parquet") as file,
    ):
        RowsFile(file, "fp16").add("embedding", keys, values)
