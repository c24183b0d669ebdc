"""Rows are read as they are meant, to the last bit, or refused with the column, the row and the remedy."""

from __future__ import annotations

import json
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.serving.payload import Columns, RequestRefused, read_arrow, read_json, write_arrow, write_json

COLUMNS = Columns({"price": True, "item": False}, ignored=("click",))
MAX_BYTES = 2**20


def body(**content: Any) -> bytes:
    return json.dumps(content).encode()


def rows(*items: Any) -> bytes:
    return body(rows=[{"price": 1.0, "item": item} for item in items])


def stream(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def refusal(sent: bytes) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        read_json(sent, COLUMNS)
    assert len(str(caught.value)) < 400
    return caught.value


def test_rows_and_columns_are_the_same_table() -> None:
    by_row, shape = read_json(b'{"rows": [{"price": 1, "item": 7}, {"item": 8}]}', COLUMNS)
    by_column, other = read_json(b'{"columns": {"price": [1, null], "item": [7, 8]}}', COLUMNS)
    assert (shape, other) == ("rows", "columns")
    assert by_row == by_column
    assert by_row.to_pydict() == {"price": [1.0, None], "item": [7, 8]}


@pytest.mark.parametrize(
    "items",
    [
        [2**63 - 1, -(2**63)],
        [2**64 - 1, 0],
        [[2**64 - 1], None, [1, None]],
        [[1, 2], [], None],
        ["a", "ü", None],
        [["a"], ["b", None]],
        [2**53 + 1, None],
        [None, None],
    ],
)
def test_ids_keep_every_bit(items: list[Any]) -> None:
    table, _ = read_json(rows(*items), COLUMNS)
    assert table["item"].to_pylist() == items


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_any_signed_ids_come_through(items: list[int | None]) -> None:
    assert read_json(rows(*items), COLUMNS)[0]["item"].to_pylist() == items


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**64 - 1)), min_size=1))
def test_any_unsigned_ids_come_through(items: list[int | None]) -> None:
    assert read_json(rows(*items), COLUMNS)[0]["item"].to_pylist() == items


@given(st.lists(st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)), min_size=1))
def test_any_numbers_become_the_nearest_floats(prices: list[Any]) -> None:
    sent = body(columns={"price": prices, "item": [1] * len(prices)})
    if any(isinstance(price, int) and abs(price) >= 2**1023 for price in prices):
        assert "too large" in str(refusal(sent))
    else:
        read = read_json(sent, COLUMNS)[0]["price"]
        assert read.type == pa.float64()
        assert read.to_pylist() == [None if price is None else float(price) for price in prices]


def test_lists_of_numbers_are_read() -> None:
    table, _ = read_json(body(columns={"price": [[1, 2.5], None], "item": [1, 2]}), COLUMNS)
    assert table["price"].to_pylist() == [[1.0, 2.5], None]


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"", 400, ["not JSON"]),
        (b"{", 400, ["not JSON"]),
        (b"\xff\xfe\x00", 400, ["not JSON"]),
        (b'{"rows": [{"price": NaN, "item": 1}]}', 400, ["NaN", "null"]),
        (b'{"rows": [{"price": -Infinity, "item": 1}]}', 400, ["Infinity"]),
        (b"[" * 100_000, 400, ["nested"]),
        (b'{"rows": ' + b"9" * 5000 + b"}", 400, ["not JSON"]),
        (b"[1]", 400, ['{"rows":']),
        (b"{}", 400, ['{"rows":']),
        (b'{"rows": [], "columns": {}}', 400, ['{"rows":']),
        (b'{"row": []}', 400, ['{"rows":']),
        (b'{"rows": []}', 400, ["`rows`", "at least one"]),
        (b'{"rows": {"price": 1}}', 400, ["`rows`", "an object"]),
        (b'{"rows": [{"price": 1, "item": 2}, 3]}', 400, ["Row 1", "a number"]),
        (b'{"columns": []}', 400, ["`columns`"]),
        (b'{"columns": {"price": 1, "item": [1]}}', 400, ["'price'", "a list", "a number"]),
        (b'{"columns": {"price": [1, 2], "item": [1]}}', 400, ["'price' has 2", "'item' has 1"]),
        (b'{"rows": [{"price": 1}]}', 422, ["'item' is missing", "price, item"]),
        (b'{"rows": [{"price": 1, "itme": 2}]}', 422, ["'itme' is unknown", "Did you mean 'item'?"]),
        (b'{"rows": [{"price": 1, "item": 2, "zzz": 2}]}', 422, ["'zzz' is unknown", "Leave it out"]),
        (b'{"rows": [{"price": 1, "item": 2, "\\ud800": 2}]}', 422, ["is unknown"]),
        (b'{"rows": [{"price": 1, "item": 2}, {"price": "9", "item": 2}]}', 422, ["Row 1", "'price'", "'9' is text"]),
        (b'{"rows": [{"price": {}, "item": 2}]}', 422, ["Row 0", "'price'"]),
        (b'{"rows": [{"price": 1, "item": "a"}, {"price": 1, "item": 2}]}', 422, ["Row 1", "a number after text"]),
        (b'{"rows": [{"price": 1, "item": "\\ud800"}]}', 422, ["Row 0", "'item'", "Unicode"]),
        (b'{"rows": [{"price": 1, "item": {"a": 1}}]}', 422, ["Row 0", "'item'", "an object"]),
        (b'{"rows": [{"price": 1, "item": [[1]]}]}', 422, ["Row 0", "'item'", "a list in a list"]),
        (b'{"rows": [{"price": 1, "item": [1, "a"]}]}', 422, ["Row 0", "'item'", "text after a number"]),
        (b'{"rows": [{"price": 1, "item": [1]}, {"price": 1, "item": 2}]}', 422, ["Row 1", "lists or single"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(sent: bytes, status: int, words: list[str]) -> None:
    refused = refusal(sent)
    assert refused.status == status
    for word in words:
        assert word in str(refused), str(refused)


@pytest.mark.parametrize("item", [2**64, -(2**63) - 1, 10**300])
def test_ids_beyond_64_bits_are_refused(item: int) -> None:
    assert "Row 1, column 'item'" in str(refusal(rows(1, item)))
    assert "64 bits" in str(refusal(rows(1, item)))


@pytest.mark.parametrize("items", [[2**63, 0.5], [2**63, -1], [2**53 + 1, 0.5], [2**63, True, 1.0]])
def test_ids_that_cannot_stand_in_one_column_are_refused_rather_than_rounded(items: list[Any]) -> None:
    assert refusal(rows(*items)).status == 422


def test_labels_are_passed_over() -> None:
    table, _ = read_json(b'{"rows": [{"price": 1, "item": 2, "click": "yes"}]}', COLUMNS)
    assert table.column_names == ["price", "item"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
almost_rows = st.fixed_dictionaries({"price": json_values, "item": json_values})


@given(
    st.one_of(
        json_values, almost_rows.map(lambda row: {"rows": [row]}), st.lists(almost_rows).map(lambda r: {"rows": r})
    )
)
def test_any_json_is_read_or_refused(content: Any) -> None:
    with suppress(RequestRefused):
        table, _ = read_json(json.dumps(content).encode(), COLUMNS)
        assert table.num_rows
        table.validate(full=True)


def test_columns_of_nulls_alone_get_the_type_that_is_known() -> None:
    """Then such a request is scored together with others."""
    known = Columns({"price": True, "item": False}, types={"item": pa.string()})
    table, _ = read_json(rows(None), known)
    assert table.schema.types == [pa.float64(), pa.string()]
    assert read_json(rows(5), known)[0]["item"].to_pylist() == [5]


# --- Arrow -----------------------------------------------------------------------------------------------------------

TABLE = pa.table({"item": pa.array([1, 2], pa.uint64()), "price": pa.array([1.5, None], pa.float32())})


def test_arrow_is_read_with_its_own_types_in_the_order_of_the_model() -> None:
    read = read_arrow(stream(TABLE.append_column("click", pa.array([0, 1]))), COLUMNS, MAX_BYTES)
    assert read == TABLE.select(["price", "item"])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (TABLE.select(["item"]), "'price' is missing"),
        (TABLE.rename_columns(["item", "pric"]), "Did you mean 'price'?"),
        (pa.table([[1], [2], [3]], names=["item", "price", "item"]), "twice"),
        (TABLE.slice(0, 0), "no rows"),
    ],
)
def test_arrow_tables_that_do_not_fit_are_refused(table: Any, words: str) -> None:
    with pytest.raises(RequestRefused, match=words.replace("?", r"\?")):
        read_arrow(stream(table), COLUMNS, MAX_BYTES)


def test_compressed_rows_cannot_grow_without_bound() -> None:
    table = pa.table({"item": pa.array([0] * 500_000), "price": pa.array([0.0] * 500_000)})
    sent = stream(table, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    assert len(sent) < 10_000
    with pytest.raises(RequestRefused) as caught:
        read_arrow(sent, COLUMNS, 10_000)
    assert caught.value.status == 413


def nulls(num: int) -> Any:
    """Return so many nulls, which take no memory: pa.nulls would give them a bitmap."""
    return pa.Array.from_buffers(pa.null(), num, [None])


ITEMS = pa.array([b"x" * 100_000])
VIEWS = np.tile(np.array([100_000, 0x78787878, 0, 0], np.int32), 10_000)  # length, first letters, buffer, offset
SHORT_BODIES = {
    "rows of nulls": (nulls(2**31 - 1), "20,000 rows"),
    "a long list of nulls": (
        pa.LargeListArray.from_arrays(pa.array([0, 2**31 - 1]), nulls(2**31 - 1)), "bytes. Send fewer"
    ),
    "lists of a fixed size": (pa.FixedSizeListArray.from_arrays(nulls(10**9), 10**9), "bytes. Send fewer"),
    "a dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int8()), ITEMS.cast(pa.string())), "bytes. Send fewer"
    ),
    "bytes of a dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int8()), ITEMS), "bytes. Send fewer"
    ),
    "lists of a dictionary": (
        pa.ListArray.from_arrays(
            pa.array([0, 10_000], pa.int32()),
            pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int8()), ITEMS.cast(pa.string())),
        ),
        "bytes. Send fewer",
    ),
    "views": (
        pa.Array.from_buffers(pa.string_view(), 10_000, [None, pa.py_buffer(VIEWS), pa.py_buffer(b"x" * 100_000)]),
        "bytes. Send fewer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHORT_BODIES)
def test_a_short_stream_cannot_stand_for_more_than_fits_into_memory(case: str) -> None:
    item, words = SHORT_BODIES[case]
    sent = stream(pa.table({"price": nulls(len(item)), "item": item}))
    assert len(sent) < MAX_BYTES
    with pytest.raises(RequestRefused, match=words) as caught:
        read_arrow(sent, COLUMNS, MAX_BYTES)
    assert caught.value.status == 413


def test_dictionaries_and_views_of_usual_size_are_read() -> None:
    for item in (pa.array(["a", None, "b"]).dictionary_encode(), pa.array(["a", None, "b" * 20], pa.string_view())):
        table = pa.table({"price": [1.0, 2.0, 3.0], "item": item})
        assert read_arrow(stream(table), COLUMNS, MAX_BYTES) == table


def test_more_rows_than_a_request_may_have_are_refused_whatever_their_form() -> None:
    many = {"price": [1.0] * 3, "item": [1, 2, 3]}
    table = pa.table(many)
    batches = stream(pa.concat_tables([table.slice(0, 2), table.slice(2, 1)]))
    reads = [
        lambda most: read_json(body(columns=many), COLUMNS, most)[0],
        lambda most: read_json(body(rows=table.to_pylist()), COLUMNS, most)[0],
        lambda most: read_arrow(batches, COLUMNS, MAX_BYTES, most),
    ]
    for read in reads:
        assert read(3).num_rows == 3
        with pytest.raises(RequestRefused, match="may have 2 rows") as caught:
            read(2)
        assert caught.value.status == 413


def test_names_are_checked_before_columns_are_built() -> None:
    """A row with many invented names would make as many columns, each with a value for every row."""
    num = 5_000
    sent = body(rows=[{f"x{number}": 1 for number in range(num)}, *({} for _ in range(num))])
    tracemalloc.start()
    try:
        assert "'x0' is unknown" in str(refusal(sent))
        assert tracemalloc.get_traced_memory()[1] < 20 * num * 100
    finally:
        tracemalloc.stop()


def test_many_names_are_checked_in_a_moment() -> None:
    names = [f"x{number}" for number in range(30_000)]
    begin = time.process_time()
    with pytest.raises(RequestRefused, match="'x0' is there twice"):
        COLUMNS.check([*names, *names])
    assert time.process_time() - begin < 2.0


@given(st.binary(max_size=200))
def test_any_bytes_are_no_arrow(sent: bytes) -> None:
    with pytest.raises(RequestRefused):
        read_arrow(sent, COLUMNS, MAX_BYTES)


@given(st.data())
def test_arrow_with_changed_bytes_is_read_or_refused(data: st.DataObject) -> None:
    sent = bytearray(stream(pa.table({"item": ["a", "bcd", None], "price": [1.0, 2.0, 3.0]})))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RequestRefused):
        table = read_arrow(bytes(sent[: data.draw(st.integers(1, len(sent)))]), COLUMNS, MAX_BYTES)
        table.validate(full=True)


# --- scores ----------------------------------------------------------------------------------------------------------

SCORES = pa.table({"score": pa.array([0.25, None], pa.float32()), "score_rating": pa.array([3.5, 4.0], pa.float32())})


def test_scores_are_written_in_the_shape_of_the_request() -> None:
    head = {"version": "12-2", "num_unknown": 3}
    first, second = {"score": 0.25, "score_rating": 3.5}, {"score": None, "score_rating": 4.0}
    assert json.loads(write_json(SCORES, "12-2", 3, "rows")) == {**head, "rows": [first, second]}
    columns = {"score": [0.25, None], "score_rating": [3.5, 4.0]}
    assert json.loads(write_json(SCORES, "12-2", 3, "columns")) == {**head, "columns": columns}


def test_scores_that_are_not_finite_are_null_in_json() -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array([np.nan, 1.0, 2.0, -np.inf], pa.float32()), 2)
    scores = pa.table({"score": pa.array([np.inf, 0.5], pa.float32()), "score_kind": lists})
    columns = {"score": [None, 0.5], "score_kind": [[None, 1.0], [2.0, None]]}
    assert json.loads(write_json(scores, "12", 0, "columns"))["columns"] == columns
    first = {"score": None, "score_kind": [None, 1.0]}
    assert json.loads(write_json(scores, "12", 0, "rows"))["rows"][0] == first


def test_arrow_scores_carry_their_version() -> None:
    read = pa.ipc.open_stream(write_arrow(SCORES, "12", 3)).read_all()
    assert read.schema.metadata == {b"version": b"12", b"num_unknown": b"3"}
    assert read.to_pydict() == SCORES.to_pydict()
