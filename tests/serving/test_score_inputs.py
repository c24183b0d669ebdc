"""What score.py makes of columns is what the reader of heterps makes of them, whatever the columns are."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import Constant, Data, Job, Normal, Schema, Uniform, Zero
from heterps.data.batch import Slots
from heterps.data.columns import check_columns
from heterps.data.decode import Decoder
from heterps.data.frames import TableFile
from heterps.data.sources import Dataset
from heterps.errors import DataError
from heterps.ps.table.sparse import SparseTable
from heterps.serving.export import inputs_of
from heterps.serving.score_inputs import Samples, ScoreError, initial_values

NUM = 7
TYPES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=30),
    pa.large_binary(): st.binary(max_size=20),
    pa.float64(): st.one_of(st.integers(-(2**53), 2**53).map(float), st.just(float("nan"))),
    pa.null(): st.none(),
}
NUMBERS = {
    pa.float64(): st.floats(width=32, allow_infinity=False),
    pa.float32(): st.floats(-(2.0**90), 2.0**90, width=32),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.bool_(): st.booleans(),
}
PARTS = ["year", "month", "day", "weekday", "day_of_year", "hour", "minute", "days"]


@st.composite
def id_columns(draw: st.DrawFn, lists: bool = True) -> Any:
    kind = draw(st.sampled_from(list(TYPES)))
    values = st.one_of(st.none(), TYPES[kind])
    if lists and kind != pa.null() and draw(st.booleans()):
        items = draw(st.lists(st.one_of(st.none(), st.lists(values, max_size=4)), min_size=NUM, max_size=NUM))
        return pa.array(items, draw(st.sampled_from([pa.list_(kind), pa.large_list(kind)])))
    column = pa.array(draw(st.lists(values, min_size=NUM, max_size=NUM)), kind)
    return column.dictionary_encode() if kind == pa.string() and draw(st.booleans()) else column


@st.composite
def number_columns(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(list(NUMBERS)))
    return pa.array(draw(st.lists(st.one_of(st.none(), NUMBERS[kind]), min_size=NUM, max_size=NUM)), kind)


@st.composite
def date_columns(draw: st.DrawFn) -> Any:
    times = st.datetimes(datetime(1901, 1, 1), datetime(2100, 1, 1))
    values = draw(st.lists(st.one_of(st.none(), times), min_size=NUM, max_size=NUM))
    kind = draw(st.sampled_from(["time", "day", "text", "offset", "number"]))
    match kind:
        case "time":
            return pa.array(values, pa.timestamp(draw(st.sampled_from(["us", "ns"]))))
        case "day":
            return pa.array([None if v is None else date(v.year, v.month, v.day) for v in values], pa.date32())
        case "text":
            return pa.array([None if v is None else v.isoformat(timespec="seconds") for v in values], pa.string())
        case "offset":
            return pa.array([None if v is None else f"{v.isoformat(timespec='seconds')}+02:00" for v in values])
        case _:
            return pa.array([None if v is None else v.replace(tzinfo=UTC).timestamp() for v in values], pa.float64())


STEPS = st.lists(
    st.sampled_from(["log", {"clip": [-3, 100]}, {"clip": {"high": 5}}, {"standardise": {"mean": 3.5, "std": 2.0}}]),
    min_size=1, max_size=3, unique_by=str,
)  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, pa.Table]:
    """A schema with features, and a table for it."""
    width = draw(st.integers(1, 3))
    vectors = st.lists(st.one_of(st.none(), st.floats(-10, 10, width=32)), min_size=width, max_size=width)
    one_cross = draw(st.booleans())
    columns = {
        "x": draw(number_columns()),
        "y": draw(number_columns()),
        "v": pa.array(
            draw(st.lists(st.one_of(st.none(), vectors), min_size=NUM, max_size=NUM)), pa.list_(pa.float32())
        ),
        "s": draw(id_columns()),
        "t": draw(id_columns(lists=False)),
        "u": draw(id_columns(lists=one_cross)),
        "time": draw(date_columns()),
    }
    schema = Schema.model_validate({
        "dense": ["x", "y2", "v", "days"],
        "widths": {"v": width},
        "slots": ["s", "t", "hour", "bucket", "crossed", "s2"],
        "same_ids": {"s2": "s"},
        "features": {
            "y2": {"column": "y", "steps": draw(STEPS)},
            "days": {"column": "time", "steps": [{"date": draw(st.sampled_from(PARTS))}]},
            "hour": {"column": "time", "steps": [{"date": draw(st.sampled_from(PARTS[:-1]))}]},
            "bucket": {"column": "y", "steps": ["log", {"bucketise": [-1.5, 0, 2]}]},
            "crossed": {"cross": ["t", "u", "hour"] if draw(st.booleans()) else ["u", "t"]},
            "s2": {"column": "s"},
        },
        "dense_missing": draw(st.sampled_from(["fill", "fill", "skip", "skip", "error"])),
        "dense_fill": -2.5,
        "slot_missing": draw(st.sampled_from(["key", "key", "skip", "skip", "error"])),
    })  # fmt: skip
    return schema, pa.table(columns).slice(draw(st.integers(0, 3)))


def decoded(schema: Schema, table: pa.Table) -> Any:
    """Dense columns, the keys of each slot by sample, and the rows that are kept, by the reader of heterps."""
    plain = schema.without_labels()
    dataset = Dataset((TableFile(table),))
    ragged = check_columns(dataset, plain)
    block = Decoder(plain, ragged).decode(dataset.row_groups[0])
    slots = Slots(schema.slots, block.keys, block.offsets)
    bags = {}
    for name in schema.slots:
        one = slots.select([name])
        ends = np.arange(len(table) + 1) if one.offsets is None else one.offsets
        bags[name] = [one.keys[a:b].tolist() for a, b in pairwise(ends)]
    return block.dense, bags, block.rows


@settings(max_examples=60)
@given(case=cases())
def test_numbers_and_keys_are_those_of_the_reader(case: tuple[Schema, pa.Table]) -> None:
    schema, table = case
    inputs = inputs_of(Job(data=Data(train="none", columns=schema)))
    samples = Samples(table, inputs)
    try:
        dense, bags, rows = decoded(schema, table)
    except DataError:
        with pytest.raises(ScoreError, match="column"):
            [samples.dense(), *(samples.keys(slot) for slot in inputs["slots"])]
        return
    np.testing.assert_array_equal(samples.dense(), dense)
    for slot in inputs["slots"]:
        keys, lengths = samples.keys(slot)
        ends = np.arange(len(table) + 1) if lengths is None else np.concatenate([[0], np.cumsum(lengths)])
        assert [keys[a:b].tolist() for a, b in pairwise(ends)] == bags[slot["name"]]
    np.testing.assert_array_equal(np.flatnonzero(samples.keep), rows)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**64 - 1),
    dim=st.integers(1, 9),
    init=st.sampled_from([Uniform(scale=0.3), Normal(std=0.7), Constant(value=0.25), Zero()]),
)
def test_unknown_keys_read_the_initial_values_of_the_table(seed, dim, init):
    keys = np.random.default_rng(seed % 1000).integers(0, 2**64, 50, np.uint64)
    expected = SparseTable(dim, seed=seed, init=init).pull(keys, create=False)
    np.testing.assert_array_equal(initial_values(keys, dim, seed, init.model_dump()), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": ["a", "b"]}, "column x has type string, but the model needs a number"),
        ({"x": [[1.0], [2.0]]}, r"column x has type list<item: double>, but the model needs a number"),
        ({"v": [1.0, 2.0]}, "column v has type double, but the model needs lists of 2 numbers"),
        ({"v": [[1.0, 2.0], [3.0]]}, "row 11, column v: the list has 1 numbers, but the model takes 2"),
        ({"x": [1.0, 1e39]}, "row 11, column x: it is not finite as a float32"),
        ({"s": [1.0, 2.5]}, r"row 11, column s: the id 2.5 is a float that is not a whole number"),
        ({"s": [[1.0], [3.0, 2.5]]}, r"row 11, column s: the id 2.5"),
        ({"s": [{"a": 1}, {"a": 2}]}, "column s has type struct<a: int64>, but the model needs an id"),
        ({"s": ["1", "2"]}, "column s has type string, but the model needs integer ids, as the training data did"),
        ({"s": [1, None]}, "row 11, column s: the id is null; the model needs an id"),
        ({"x": None}, "there is no column x, which the model needs; there are: v, s"),
    ],
)
def test_samples_that_the_model_cannot_take_are_named(change, message):
    schema = Schema(dense=("x", "v"), widths={"v": 2}, slots=("s",), slot_missing="error", id_kinds={"s": "integer"})
    inputs = inputs_of(Job(data=Data(train="none", columns=schema)))
    columns = {"x": [1.0, 2.0], "v": [[1.0, 2.0], [3.0, 4.0]], "s": [1, 2], **change}
    samples = Samples(pa.table({name: values for name, values in columns.items() if values}), inputs, first_row=10)
    with pytest.raises(ScoreError, match=message):
        [samples.dense(), *(samples.keys(slot) for slot in inputs["slots"])]


def test_a_cross_of_two_lists_is_refused_as_in_training():
    schema = Schema(dense=(), slots=("crossed",), features={"crossed": {"cross": ["s", "t"]}})
    inputs = inputs_of(Job(data=Data(train="none", columns=schema)))
    table = pa.table({"s": [[1, 2], [3]], "t": [[4, 5], [6]]})
    with pytest.raises(DataError, match="s and t all hold lists"):
        decoded(schema, table)
    with pytest.raises(ScoreError, match=r"column crossed is a cross of ids.* but s and t all hold lists"):
        Samples(table, inputs).keys(inputs["slots"][0])
