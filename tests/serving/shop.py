"""A small shop: clicks of users on items, with all kinds of columns, and the job that learns from them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

JOB = """
name: shop
model: {factory: ctr_dnn, args: {embedding_dim: 4, hidden: [8]}}
data:
  train: train.parquet
  test: test.parquet
  columns:
    label: click
    dense: [price, age]
    slots: [user, item, tags, hour]
    dense_missing: fill
    features: {price: [log, standardise], hour: {column: time, steps: [{date: hour}]}}
  batch_size: 64
  epochs: 2
threads: 1
"""


def shop_table(num_rows: int, seed: int, *, new_ids: int = 0) -> pa.Table:
    """Clicks of users on items: strings, integers, lists, dates, numbers of several scales, and gaps."""
    random = np.random.default_rng(seed)
    users = random.integers(0, 40, num_rows)
    items = random.integers(new_ids, 30 + new_ids, num_rows)
    tags = [random.integers(0, 9, random.integers(0, 4)).tolist() for _ in range(num_rows)]
    ages = [None if random.random() < 0.1 else float(random.normal(40, 10)) / 40 for _ in range(num_rows)]
    return pa.table(
        {
            "click": pa.array((random.random(num_rows) < 0.3 + 0.4 * (users % 2)).astype(np.int64)),
            "price": pa.array(np.exp(random.normal(3, 1, num_rows))),
            "age": pa.array(ages, pa.float64()),
            "user": pa.array([f"u{user}" for user in users]),
            "item": pa.array(items),
            "tags": pa.array(tags, pa.list_(pa.int64())),
            "time": pa.array(1.7e9 + random.integers(0, 86_400 * 30, num_rows)),
        }
    )
