"""Where the rows of a batch are in the files, whatever their order, and however many are skipped or held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.config import Schema, Split
from heterps.data.places import Places
from heterps.data.reader import Reader
from heterps.data.split import Part

NUM_ROWS = 130


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("share", [None, 0.4])
def test_the_value_at_a_place_is_that_of_the_sample(tmp_path: Path, shuffle: bool, share: float | None) -> None:
    for name, first in (("one", 0.0), ("two", 1000.0)):
        values = first + np.arange(NUM_ROWS, dtype=np.float64)
        values[5:60:2] = np.nan  # skipped
        columns = {"label": np.arange(NUM_ROWS) % 2, "a": values, "s": np.arange(NUM_ROWS)}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=40)
    schema = Schema(dense=("a",), slots=("s",), dense_missing="skip")
    part = None if share is None else Part(Split(share=share), held_out=False)
    reader = Reader(str(tmp_path), schema, batch_size=16, shuffle=shuffle, seed=3, part=part)
    places = Places(reader)
    seen: set[tuple[str, int]] = set()
    for number in (3, 0, 1, 2, 4):
        batch, found = places.find(1, number)
        assert len(found) == len(batch)
        for place, (value,) in zip(found, batch.dense, strict=True):
            file = pq.ParquetFile(place.file)
            assert file.read_row_group(place.row_group)["a"][place.row].as_py() == value
            assert file.read()["a"][place.row_of_file].as_py() == value
            seen.add((place.file, place.row_of_file))
    assert len(seen) == 5 * 16
    places.close()
