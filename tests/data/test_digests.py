"""Digests of row groups follow from the values that are trained on, and from nothing that happens to be in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.config import Schema
from heterps.data.digests import Digests, digest_of
from heterps.data.reader import Reader
from heterps.errors import DataError

ROWS = {
    "label": [0, 1, None, 1],
    "a": [1.0, None, 3.0, 4.0],
    "s": [7, 8, None, 9],
    "t": [[1, 2], [], [3], None],
}


def digests(path: Path, schema: Schema) -> list[str]:
    reader = Reader(str(path), schema, batch_size=1)
    list(reader.read())
    return [counts.digest for counts in reader.counts_of_groups(0).values()]


@pytest.mark.parametrize("missing", [{}, {"dense_missing": "skip"}, {"slot_missing": "skip"}])
@pytest.mark.parametrize("slots", [("s",), ("s", "t")])
def test_what_was_in_memory_before_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: dict[str, Any], slots: tuple[str, ...]
) -> None:
    rows = {**ROWS, "label": [0, 1, 0, 1]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet", row_group_size=2)
    schema = Schema(label="label", dense=("a",), slots=slots, **missing)
    found = digests(tmp_path / "rows.parquet", schema)
    assert len(set(found)) == 2
    empty, poison = np.empty, iter(range(1, 10**6))

    def poisoned(*args: Any, **options: Any) -> Any:
        array = empty(*args, **options)
        if array.dtype != object:
            array.view(np.uint8).fill(next(poison) % 251) if array.flags.c_contiguous and array.size else None
        return array

    monkeypatch.setattr(np, "empty", poisoned)
    for _ in range(2):
        assert digests(tmp_path / "rows.parquet", schema) == found


def test_order_and_values_matter() -> None:
    one, other = np.array([1, 2], np.uint64), np.array([2, 1], np.uint64)
    assert len({digest_of([one]), digest_of([other]), digest_of([one, other]), digest_of([one[::-1], None])}) == 3


def test_a_row_group_that_changed_is_named_also_after_a_checkpoint() -> None:
    known = Digests()
    for _ in range(2):
        known.check(3, "a")
    again = Digests()
    again.restore(known.state())
    with pytest.raises(DataError, match=r"^row group 3 of data\.train, counted over all files, holds other values"):
        again.check(3, "b")
