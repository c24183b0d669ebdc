"""A job that trains in a moment: its file and its data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

JOB = """
name: tiny
model: {factory: ctr_dnn, args: {embedding_dim: 4, hidden: [8]}}
data:
  train: train.parquet
  test: test.parquet
  columns: {dense: [a, b], slots: [s, t]}
  batch_size: 16
threads: 1
metrics_every_samples: 64
"""


def write_tiny(path: Path, num_rows: int, **columns: list[object]) -> None:
    """A Parquet file with a label, dense columns a and b, and slots s and t; `columns` replace or, empty, drop some."""
    random = np.random.default_rng(num_rows)
    ids = random.integers(0, 20, (num_rows, 2))
    dense = random.normal(size=(num_rows, 2))
    table = {"label": ids[:, 0] % 2, "a": dense[:, 0], "b": dense[:, 1], "s": ids[:, 0], "t": ids[:, 1], **columns}
    pq.write_table(pa.table({name: values for name, values in table.items() if len(values)}), path, row_group_size=50)
