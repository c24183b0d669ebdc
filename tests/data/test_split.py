"""Rows that are held out for validation are never trained on, and the others all are."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.config import Job
from heterps.data.fit import fit_job
from heterps.data.reader import open_reader, open_validation_reader
from heterps.data.split import fit_split
from heterps.errors import DataError

ROWS = 900
USERS = np.arange(ROWS) * 7919 % 60
START = datetime(2024, 1, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of some row groups; `number` tells the rows apart, and times are in no order."""
    times = [START + timedelta(minutes=int(minute)) for minute in np.arange(ROWS) * 389 % ROWS]
    table = pa.table(
        {
            "label": np.arange(ROWS) % 2,
            "number": np.arange(ROWS, dtype=np.float64),
            "user": [f"user {u}" for u in USERS],
            "time": times,
            "iso": [time.isoformat() for time in times],
        }
    )
    pq.write_table(table.slice(0, 500), tmp_path / "a.parquet", row_group_size=120)
    pq.write_table(table.slice(500), tmp_path / "b.parquet", row_group_size=90)
    return tmp_path


def job(folder: Path, validation: object, **data: object) -> Job:
    columns = {"dense": ["number"], "slots": ["user"], **data.pop("columns", {})}
    return Job.model_validate(
        {"data": {"train": str(folder), "validation": validation, "columns": columns, "batch_size": 50, **data}}
    )


def numbers(reader) -> list[int]:
    return [int(number) for batch, _ in reader.read() for number in batch.dense[:, 0]]


def sides(split_job: Job) -> tuple[list[int], list[int]]:
    return numbers(open_reader(split_job)), numbers(open_validation_reader(split_job))


@pytest.mark.parametrize("split", [{"share": 0.2}, {"share": 0.2, "by": "user"}, {"share": 0.2, "newest": "time"}])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_is_on_one_side_and_always_the_same(folder, split, shuffle):
    split_job = job(folder, split, shuffle=shuffle)
    trained, held_out = sides(split_job)
    assert sorted(trained + held_out) == list(range(ROWS))
    assert 0.1 * ROWS < len(held_out) < 0.3 * ROWS
    assert open_reader(split_job).num_rows == len(trained), "the number is known before anything is decoded"
    assert open_reader(split_job).num_batches == -(-len(trained) // 50)
    assert numbers(open_validation_reader(split_job)) == held_out == sorted(held_out)


def test_rows_with_the_same_value_stay_together(folder):
    trained, held_out = sides(job(folder, {"share": 0.3, "by": "user"}))
    assert not {USERS[n] for n in trained} & {USERS[n] for n in held_out}


def test_a_row_stays_on_its_side_when_files_are_added(folder):
    before = set(sides(job(folder, {"share": 0.3}))[1])
    extra = pq.read_table(folder / "b.parquet").set_column(1, "number", pa.array(np.arange(1000.0, 1400.0)))
    pq.write_table(extra, folder / "aa.parquet")
    after = {n for n in sides(job(folder, {"share": 0.3}))[1] if n < ROWS}
    assert after == before


@pytest.mark.parametrize("column", ["time", "iso", "number"])
def test_the_newest_rows_are_held_out(folder, column):
    trained, held_out = sides(job(folder, {"share": 0.1, "newest": column}))
    when = np.arange(ROWS) if column == "number" else np.arange(ROWS) * 389 % ROWS
    assert len(held_out) == pytest.approx(0.1 * ROWS, abs=1)
    assert min(when[n] for n in held_out) > max(when[n] for n in trained)


def test_the_time_that_was_found_is_part_of_the_job(folder):
    found = fit_split(job(folder, {"share": 0.1, "newest": "time"}))
    since = datetime.fromtimestamp(found.data.validation.since) - datetime.fromtimestamp(0) + datetime(1970, 1, 1)
    assert START + timedelta(minutes=805) < since < START + timedelta(minutes=815)
    assert fit_split(found) is found
    assert Job.model_validate(found.model_dump()) == found


def test_held_out_rows_are_not_counted_as_skipped(folder):
    reader = open_reader(job(folder, {"share": 0.2}))
    trained = numbers(reader)
    assert (reader.counts.num_rows, reader.counts.num_skipped) == (len(trained), 0)


def test_rows_without_a_value_are_skipped_on_their_side(folder):
    table = pq.read_table(folder / "a.parquet")
    values = [None if n % 10 == 0 else n for n in table.column("number").to_pylist()]
    pq.write_table(table.set_column(1, "number", pa.array(values, pa.float64())), folder / "a.parquet")
    trained, held_out = sides(job(folder, {"share": 0.2}, columns={"dense_missing": "skip"}))
    assert sorted(trained + held_out) == [n for n in range(ROWS) if n >= 500 or n % 10]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"share": 0.2, "by": "usr"}, r"split by column usr, which the file does not have. It has: label, number"),
        ({"share": 1e-9}, r"no row is held out by data\.validation \(1e-09 of the rows\)\. Raise its share"),
        ({"share": 0.1, "newest": "user"}, r"data\.validation\.newest needs a column of times.*ISO 8601"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused_by_name(folder, split, message):
    with pytest.raises(DataError, match=message):
        open_validation_reader(job(folder, split))


def test_files_for_validation_are_read_in_their_order(folder):
    held_out = numbers(open_validation_reader(job(folder / "a.parquet", str(folder / "b.parquet"))))
    assert held_out == list(range(500, ROWS))


def test_features_are_fitted_without_the_rows_that_are_held_out(folder):
    split = {"share": 0.5, "newest": "number"}
    fitted = fit_job(fit_split(job(folder, split, columns={"features": {"number": ["standardise"]}})))
    (step,) = fitted.data.columns.features["number"].steps
    assert step.mean == pytest.approx(np.arange(ROWS // 2).mean(), abs=0.6)
