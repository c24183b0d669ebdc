"""Features: their grammar, their arithmetic against Python's own, and the columns that a reader makes of them."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.config import Schema
from heterps.config.features import Bucketise, ClipValues, Date, Feature, Log, Standardise, keep_fitted
from heterps.data.batch import Batch
from heterps.data.features import apply, cross, date_part, transform
from heterps.data.keys import make_keys
from heterps.data.reader import Reader
from heterps.errors import ConfigError, DataError
from heterps.hashing import mix64

DATES = [-1.0, 0.0, 951_782_399.5, 951_782_400.0, 1_709_164_799.0, 1_735_689_599.0, 4_102_444_800.0]
PARTS = {
    "year": lambda d: d.year,
    "month": lambda d: d.month,
    "day": lambda d: d.day,
    "weekday": lambda d: d.weekday(),
    "day_of_year": lambda d: d.timetuple().tm_yday,
    "hour": lambda d: d.hour,
    "minute": lambda d: d.minute,
}


# --- grammar ---------------------------------------------------------------------------------------------------------


def features(**given: Any) -> dict[str, Feature]:
    names = tuple(given)
    is_slot = [
        isinstance(g, dict) and ("cross" in g or "bucketise" in str(g["steps"][-1:]) or not g["steps"])
        for g in given.values()
    ]
    dense = tuple(name for name, slot in zip(names, is_slot, strict=True) if not slot)
    slots = tuple(name for name, slot in zip(names, is_slot, strict=True) if slot)
    return Schema(dense=dense, slots=(*slots, "user"), features=given).features


@pytest.mark.parametrize(
    ("given", "step"),
    [
        ("log", Log()),
        ("standardise", Standardise()),
        ({"standardise": {"mean": 3, "std": 2}}, Standardise(mean=3, std=2)),
        ({"clip": [0, 9]}, ClipValues(low=0, high=9)),
        ({"clip": {"high": 9}}, ClipValues(high=9)),
        ({"date": "hour"}, Date(part="hour")),
        ({"date": {"part": "hour", "unit": "ms"}}, Date(part="hour", unit="ms")),
        ({"kind": "clip", "low": 1}, ClipValues(low=1)),
    ],
)
def test_a_step_has_a_short_form(given: Any, step: object) -> None:
    made = features(x=[given])["x"]
    assert made == Feature(steps=(step,))
    assert Feature.model_validate(made.model_dump(mode="json")) == made


def test_buckets_are_a_number_or_borders() -> None:
    assert Feature.model_validate([{"bucketise": 10}]).steps == (Bucketise(buckets=10),)
    assert Feature.model_validate([{"bucketise": [18, 65]}]).steps == (Bucketise(borders=(18, 65)),)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"x": "log"}, r"steps are a list: write \[log\]"),
        ({"x": ["lgo"]}, "there is no step 'lgo': did you mean 'log'?"),
        ({"x": [3]}, "a step is one of: log, standardise"),
        ({"x": [{"clip": 3}]}, "clip takes low and high"),
        ({"x": [{"log": 3}]}, "log takes no value"),
        ({"x": [{"clip": [9, 0]}]}, "must be below high"),
        ({"x": [{"standardise": {"mean": 3}}]}, "both mean and std, or neither"),
        ({"x": [{"bucketise": [3, 3]}]}, "borders must rise"),
        ({"x": [{"bucketise": {}}]}, "needs a number of buckets or borders"),
        ({"x": []}, "needs steps, another column, or a cross"),
        ({"x": ["log", {"date": "hour"}]}, "date must be the first step"),
        ({"x": [{"bucketise": 3}, "log"]}, "bucketise must be the last step"),
        ({"x": ["standardise", {"bucketise": 3}]}, "buckets are the same without standardise"),
        ({"x": ["standardise", "standardise"]}, "one standardise is enough"),
        ({"x": {"cross": ["s"]}}, "of two or more different slots"),
        ({"x": {"cross": ["s", "t"], "steps": ["log"]}}, "leave out column and steps"),
        ({"x": [{"bucketise": 3}]}, "x makes ids, so name it in slots"),
        ({"x": {"cross": ["s", "t"]}}, "x makes ids, so name it in slots"),
        ({"s": ["log"]}, "s makes numbers, so name it in dense, or end its steps with bucketise"),
        ({"unused": ["log"]}, "unused is made but not used"),
        ({"t": {"cross": ["s", "x"]}, "x": ["log"]}, "a cross is of columns and features that are ids, and x is not"),
    ],
)
def test_a_wrong_feature_is_refused_with_what_to_write(given: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Schema(dense=("x",), slots=("s", "t"), features=given)


def test_numbers_found_before_are_kept_where_the_same_is_asked_for() -> None:
    asked = features(x=["log", "standardise"], b={"column": "y", "steps": [{"bucketise": 3}]})
    steps = {"x": (Log(), Standardise(mean=1, std=2)), "b": (Bucketise(buckets=3, borders=(4.0, 5.0)),)}
    before = {name: feature.model_copy(update={"steps": steps[name]}) for name, feature in asked.items()}
    assert keep_fitted(asked, before) == before
    assert keep_fitted(before, {}) == before
    other = features(x=["standardise"], b={"column": "z", "steps": [{"bucketise": 3}]})
    assert keep_fitted(other, before) == other


# --- arithmetic ------------------------------------------------------------------------------------------------------


def test_numbers_are_changed_as_python_would_change_them() -> None:
    values = [-1000.0, -0.5, 0.0, 2.0, 1e9]
    steps = (Log(), ClipValues(low=-5, high=10), Standardise(mean=1.5, std=4))
    expected = [(min(max(math.copysign(math.log(1 + abs(x)), x), -5), 10) - 1.5) / 4 for x in values]
    np.testing.assert_allclose(transform(np.array(values), steps), expected, rtol=1e-14)


def test_a_value_at_a_border_is_in_the_bucket_above_it() -> None:
    found = apply(np.array([-1.0, 0.0, 0.5, 1.0, 7.0, np.nan]), Bucketise(borders=(0.0, 1.0)))
    np.testing.assert_array_equal(found, [0, 1, 1, 2, 2, np.nan])


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_dates_are_those_of_the_calendar(part: Any) -> None:
    expected = [PARTS[part](dt.datetime(1970, 1, 1) + dt.timedelta(seconds=s)) for s in DATES]
    assert date_part(np.array(DATES), part).tolist() == expected
    assert np.isnan(date_part(np.array([np.nan]), part)).all()


def test_a_cross_has_an_id_for_every_pair_in_their_order() -> None:
    one, other = (grid.reshape(-1) for grid in np.meshgrid(np.arange(-40, 40), np.arange(50)))
    crossed = cross([one, other])
    assert len(np.unique(crossed)) == len(one)
    assert ((crossed == cross([other, one])) == (one == other)).all()
    first = int(mix64(np.uint64(mix64(np.uint64(7))) ^ np.uint64(9)))
    assert int(cross([np.array([7]), np.array([9])]).view(np.uint64)[0]) == first


# --- columns ---------------------------------------------------------------------------------------------------------


def read(folder: Path, columns: dict[str, Any], schema: Schema) -> Batch:
    path = folder / "data.parquet"
    size = len(next(iter(columns.values())))
    pq.write_table(pa.table({"label": [0] * size, **columns}), path)
    return next(Reader(str(path), schema, batch_size=size, shuffle=False).read())[0]


def test_a_column_may_be_a_number_a_bucket_and_an_id(tmp_path: Path) -> None:
    schema = Schema(
        dense=("age",),
        slots=("age_id", "age_group"),
        features={
            "age": [{"standardise": {"mean": 30, "std": 10}}],
            "age_id": {"column": "age"},
            "age_group": {"column": "age", "steps": [{"bucketise": [18, 65]}]},
        },
    )
    batch = read(tmp_path, {"age": [20, None, 70]}, schema)
    assert batch.dense[:, 0].tolist() == [-1.0, 0.0, 4.0]  # what is missing is filled after the steps
    keys = batch.slots.keys.reshape(3, 2)
    assert keys[:, 0].tolist() == make_keys(np.array([20, None, 70], object), "age_id").tolist()
    assert keys[:, 1].tolist() == make_keys(np.array([1, None, 2], object), "age_group").tolist()


SECONDS = [0, None, 86_400 * 365 + 3600 * 5]
AS_DATES = [None if s is None else dt.datetime(1970, 1, 1) + dt.timedelta(seconds=s) for s in SECONDS]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(SECONDS),
        pa.array([None if s is None else float(s) for s in SECONDS]),
        pa.array(AS_DATES, pa.timestamp("ms")),
        pa.array(AS_DATES, pa.timestamp("ns", "Europe/Berlin")),
        pa.array(["1970-01-01", "", "1971-01-01 05:00:00"]),
        pa.array(["1970-01-01T00:00:00Z", None, "1971-01-01T06:00:00+01:00"]).dictionary_encode(),
    ],
    ids=["seconds", "floats", "ms", "zoned", "text", "zoned text"],
)
def test_dates_are_read_in_every_form(tmp_path: Path, column: pa.Array) -> None:
    hour = {"column": "t", "steps": [{"date": "hour"}]}
    year = {"column": "t", "steps": [{"date": "year"}]}
    schema = Schema(dense=("year",), slots=("hour",), features={"hour": hour, "year": year}, dense_fill=-1)
    batch = read(tmp_path, {"t": column}, schema)
    assert batch.dense[:, 0].tolist() == [1970, -1, 1971]
    assert batch.slots.keys.tolist() == make_keys(np.array([0, None, 5], object), "hour").tolist()


def test_days_and_milliseconds_are_dates_too(tmp_path: Path) -> None:
    steps = [{"date": {"part": "day", "unit": "ms"}}]
    schema = Schema(dense=("a", "b"), slots=(), features={"a": steps, "b": steps})
    batch = read(tmp_path, {"a": [1_709_164_799_000], "b": pa.array([dt.date(2024, 3, 9)])}, schema)
    assert batch.dense.tolist() == [[28.0, 9.0]]


def test_lists_are_changed_number_by_number(tmp_path: Path) -> None:
    schema = Schema(
        dense=("vector",),
        widths={"vector": 2},
        slots=("hours", "user", "both"),
        features={
            "vector": ["log"],
            "hours": {"column": "times", "steps": [{"date": "hour"}]},
            "both": {"cross": ["user", "hours"]},
        },
    )
    columns = {"vector": [[0.0, -1.0], [1.0, 3.0]], "times": [[3600, 7200], []], "user": ["a", "b"]}
    batch = read(tmp_path, columns, schema)
    np.testing.assert_allclose(batch.dense, np.log([[1, 0.5], [2, 4]]), rtol=1e-6)
    assert batch.slots.offsets is not None
    assert batch.slots.offsets.tolist() == [0, 2, 3, 5, 5, 6, 6]
    alone = batch.slots.select(["hours"]).keys
    assert alone.tolist() == make_keys([1, 2], "hours").tolist()
    assert len(set(batch.slots.select(["both"]).keys.tolist())) == 2


def test_a_cross_with_a_missing_part_is_missing(tmp_path: Path) -> None:
    schema = Schema(dense=(), slots=("ab",), features={"ab": {"cross": ["a", "b"]}})
    batch = read(tmp_path, {"a": [1, 1, None], "b": ["x", None, "x"]}, schema)
    assert len(set(batch.slots.keys.tolist())) == 2
    assert batch.slots.keys[1] == batch.slots.keys[2] == make_keys(np.array([None]), "ab")[0]
    with pytest.raises(DataError, match="column ab: the id is null"):
        read(tmp_path, {"a": [None], "b": ["x"]}, schema.model_copy(update={"slot_missing": "error"}))


@pytest.mark.parametrize(
    ("columns", "given", "problem"),
    [
        ({"x": ["a"]}, {"x": ["log"]}, "column x has type string, but the feature x is made of numbers"),
        ({"x": [b"a"]}, {"x": [{"date": "hour"}]}, "made of dates: timestamps, dates, numbers or ISO 8601 text"),
        ({"x": ["May"]}, {"x": [{"date": "hour"}]}, "column x: a date must be ISO 8601 text such as 2024"),
        ({"x": [1_709_164_799_000]}, {"x": [{"date": "hour"}]}, "after the year 9999. Name its unit"),
        ({"y": [1.0]}, {"x": {"column": "z", "steps": ["log"]}}, "the schema names z, but the file has no such column"),
        ({"x": [1.0]}, {"x": ["standardise"]}, "the feature x has no numbers yet"),
    ],
)
def test_data_that_a_feature_cannot_be_made_of_is_refused(
    tmp_path: Path, columns: dict[str, Any], given: Any, problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        read(tmp_path, columns, Schema(dense=("x",), slots=(), features=given))


def test_a_cross_of_two_lists_or_of_numbers_is_refused(tmp_path: Path) -> None:
    schema = Schema(dense=(), slots=("ab",), features={"ab": {"cross": ["a", "b"]}})
    with pytest.raises(DataError, match="at most one of them in lists, but a and b all hold lists"):
        read(tmp_path, {"a": [[1]], "b": [[2]]}, schema)
    with pytest.raises(DataError, match=r"column b: only ids can be crossed, and 0\.5 is no whole number"):
        read(tmp_path, {"a": [1], "b": [0.5]}, schema)
