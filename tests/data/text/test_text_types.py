"""Types of columns of text: what a sample says, and what fits several samples."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from heterps.data.text.types import first_misfit, join, join_all, type_of_texts

INT, UINT, NUMBER, TEXT, DATE, TIME = (
    pa.int64(), pa.uint64(), pa.float64(), pa.string(), pa.date32(), pa.timestamp("us"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", " 3", None], INT),
        (["1", "18446744073709551615"], UINT),
        (["1", "99999999999999999999999"], TEXT),  # as a float, two ids would become one
        (["00501", "10001"], TEXT),
        (["0", "-0", "7"], INT),
        (["1.0", "2", None], NUMBER),
        (["1e3", ".5", "-inf"], NUMBER),
        (["0x10", "5"], TEXT),
        (["true", "False"], pa.bool_()),
        (["2020-02-29"], DATE),
        (["2020-02-30"], TEXT),
        (["2020-02-29 12:00:01.5", "2020-01-01T00:00"], TIME),
        (["68fd1e64", "80e26c9b"], TEXT),
        ([None, None], pa.null()),
    ],
)
def test_the_type_of_a_sample(texts: list[str | None], kind: pa.DataType) -> None:
    assert type_of_texts(pa.array(texts, pa.string())) == kind


def test_joining_types_is_the_same_in_any_order() -> None:
    kinds = [pa.null(), INT, UINT, NUMBER, TEXT, DATE, TIME, pa.bool_(), pa.list_(INT), pa.list_(TEXT)]
    for one, other in itertools.product(kinds, kinds):
        assert join(one, other) == join(other, one)
        assert join(one, join(one, other)) == join(one, other)
    assert [join(INT, NUMBER), join(INT, UINT), join(DATE, TIME), join(INT, DATE), join(pa.null(), INT)] == [
        NUMBER, UINT, TIME, TEXT, INT,
    ]  # fmt: skip
    assert join(pa.list_(INT), pa.list_(TEXT)) == pa.list_(TEXT)
    assert join_all([{"a": INT}, {"b": TEXT, "a": NUMBER}]) == {"a": NUMBER, "b": TEXT}


def test_the_first_value_that_does_not_fit_is_found() -> None:
    texts = ["5"] * 100
    assert first_misfit(pa.array(texts), INT) is None
    for row in (0, 37, 99):
        wrong = [*texts[:row], "x", *texts[row + 1 :]]
        assert first_misfit(pa.array(wrong), INT) == row
    assert first_misfit(pa.array(["x", "5", "y"]), INT) == 0
