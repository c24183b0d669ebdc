import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import Schema
from heterps.data.arrow import read_floats
from heterps.data.columns import check_columns
from heterps.data.decode import Decoder, _read_lists, key_column
from heterps.data.keys import make_keys, null_key
from heterps.data.sources import RowGroup, open_dataset
from heterps.errors import DataError


def decode(path, table, row_group=0, **policies):
    """The block and the counts of one row group (of three rows) of a file with these columns."""
    length = len(next(iter(table.values())))
    columns = {"label": [0] * length, "x": [0.0] * length, "c": list(range(length)), **table}
    pq.write_table(pa.table(columns), path / "data.parquet", row_group_size=3)
    schema = Schema(label="label", dense=("x",), slots=("c",), **policies)
    dataset = open_dataset(str(path / "data.parquet"))
    decoder = Decoder(schema, check_columns(dataset, schema))
    return decoder.decode(dataset.row_groups[row_group]), decoder.counts


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(25, 2)], ids=str
)
def test_dense_columns_of_any_number_become_float32(tmp_path, kind):
    block, _ = decode(tmp_path, {"x": pa.array([1, None, 3]).cast(kind)}, dense_fill=7.0)
    assert block.dense.dtype == np.float32
    assert block.dense[:, 0].tolist() == [1, 7, 3]


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int64(), pa.float64()], ids=str)
def test_labels_of_any_number_become_float32(tmp_path, kind):
    block, _ = decode(tmp_path, {"label": pa.array([1, 0, 1]).cast(kind)})
    assert block.label.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ([0, 1, 1, 0, 2], "2"),
        ([0, 1, 1, 0, None], "null"),
        ([0.0, 1, 1, 0, 0.5], "0.5"),
        ([0.0, 1, 1, 0, 1e-50], "1e-50"),
    ],
)
def test_a_label_other_than_0_or_1_is_located(tmp_path, labels, shown):
    place = rf"data\.parquet: row 4 \(row 1 of row group 1\), column label: a label is 0 or 1, this one is {shown}"
    with pytest.raises(DataError, match=place) as caught:
        decode(tmp_path, {"label": labels}, row_group=1)
    assert ("num_classes" in str(caught.value)) == (shown == "2")  # the other labels are of no class


@pytest.mark.parametrize("absent", [None, float("nan")])
def test_missing_numbers_follow_the_policy(tmp_path, absent):
    table = {"x": [1.0, absent, 3.0]}
    block, counts = decode(tmp_path, table, dense_missing="fill", dense_fill=-1.0)
    assert block.dense[:, 0].tolist() == [1, -1, 3]
    assert (counts.missing, counts.num_skipped) == ({"x": 1}, 0)
    block, counts = decode(tmp_path, table, dense_missing="skip")
    assert block.rows.tolist() == [0, 2]
    assert (counts.missing, counts.num_skipped) == ({"x": 1}, 1)
    with pytest.raises(
        DataError, match=rf"row 1 .*column x: the value is {'null' if absent is None else 'NaN'}; .*fill"
    ):
        decode(tmp_path, table, dense_missing="error")


@pytest.mark.parametrize("policy", ["fill", "skip", "error"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1e300])
def test_what_is_infinite_as_float32_is_always_an_error(tmp_path, value, policy):
    with pytest.raises(DataError, match=r"row 2 .*column x: .* is not finite"):
        decode(tmp_path, {"x": [0.0, 1.0, value]}, dense_missing=policy)


def test_a_row_skipped_for_two_reasons_counts_once(tmp_path):
    table = {"x": [None, 1.0, 2.0], "c": [None, None, 5]}
    block, counts = decode(tmp_path, table, dense_missing="skip", slot_missing="skip")
    assert block.rows.tolist() == [2]
    assert (counts.num_rows, counts.num_skipped, counts.missing) == (3, 2, {"x": 1, "c": 2})


# --- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint16(), pa.int64(), pa.uint64()], ids=str)
def test_integer_ids_of_any_width_get_the_same_keys(tmp_path, kind):
    block, _ = decode(tmp_path, {"c": pa.array([1, 2, 100], kind)})
    assert block.keys.tolist() == make_keys([1, 2, 100], "c").tolist()


def test_every_unsigned_64_bit_id_is_valid(tmp_path):
    ids = [2**64 - 1, 2**63, 0]
    block, _ = decode(tmp_path, {"c": pa.array(ids, pa.uint64())})
    assert block.keys.tolist() == make_keys(np.array(ids, np.uint64), "c").tolist()


STRING_TYPES = [pa.string(), pa.string_view(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", STRING_TYPES, ids=str)
def test_strings_of_any_type_get_the_same_keys(tmp_path, kind):
    words = ["a", None, "0123456789", "", "ü"]
    block, counts = decode(tmp_path, {"c": pa.array(words).cast(kind)}, row_group=0)
    assert block.keys.tolist() == make_keys(np.array(words[:3], object), "c").tolist()
    assert counts.missing == {"c": 1}
    block, _ = decode(tmp_path, {"c": pa.array(words).cast(kind)}, row_group=1)
    assert block.keys.tolist() == make_keys(np.array(words[3:], object), "c").tolist()


def test_missing_ids_follow_the_policy(tmp_path):
    table = {"c": [5, 6, None]}
    block, counts = decode(tmp_path, table)
    assert block.keys.tolist() == [*make_keys([5, 6], "c").tolist(), null_key("c")]
    assert counts.missing == {"c": 1}
    block, counts = decode(tmp_path, table, slot_missing="skip")
    assert block.rows.tolist() == [0, 1]
    assert counts.num_skipped == 1
    with pytest.raises(DataError, match=r"row 2 .*column c: the id is null; .*slot_missing to key or skip"):
        decode(tmp_path, table, slot_missing="error")


def test_a_list_of_dictionary_strings_is_a_bag(tmp_path):
    words = pa.array(["a", None, "b", "a"]).dictionary_encode()
    block, counts = decode(tmp_path, {"c": pa.ListArray.from_arrays(pa.array([0, 2, 2, 4], pa.int32()), words)})
    assert block.offsets.tolist() == [0, 2, 2, 4]
    assert block.keys.tolist() == make_keys(np.array(["a", None, "b", "a"], object), "c").tolist()
    assert counts.missing == {"c": 1}


def test_a_column_that_is_null_throughout_is_read(tmp_path):
    block, counts = decode(tmp_path, {"c": pa.nulls(3), "x": pa.nulls(3)})
    assert block.keys.tolist() == [null_key("c")] * 3
    assert block.dense[:, 0].tolist() == [0, 0, 0]
    assert counts.missing == {"x": 3, "c": 3}


BAGS = st.lists(st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4), min_size=1, max_size=7)


@settings(max_examples=40)
@given(bags=BAGS, large=st.booleans(), policy=st.sampled_from(["key", "skip"]))
def test_bags_are_what_the_lists_hold(tmp_path_factory, bags, large, policy):
    kind = pa.large_list(pa.int64()) if large else pa.list_(pa.int64())
    path = tmp_path_factory.mktemp("bags")
    for group in range((len(bags) + 2) // 3):
        block, counts = decode(path, {"c": pa.array(bags, kind)}, row_group=group, slot_missing=policy)
        part = bags[3 * group : 3 * group + 3]
        filled = [[None] if bag is None else bag for bag in part]
        expected = [make_keys(np.array(bag, object), "c").tolist() for bag in filled]
        ends = block.offsets
        assert [block.keys[ends[i] : ends[i + 1]].tolist() for i in range(len(part))] == expected
        assert counts.missing.get("c", 0) == sum(bag.count(None) for bag in filled)
        kept = [i for i, bag in enumerate(filled) if policy == "key" or None not in bag]
        assert block.rows.tolist() == kept


def test_lists_of_strings_and_of_fixed_size_are_bags(tmp_path):
    block, _ = decode(tmp_path, {"c": [["a", "b"], [], ["c"]]})
    assert block.offsets.tolist() == [0, 2, 2, 3]
    assert block.keys.tolist() == make_keys(["a", "b", "c"], "c").tolist()
    block, _ = decode(tmp_path, {"c": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))})
    assert block.keys.tolist() == make_keys([1, 2, 3, 4], "c").tolist()


def test_a_null_inside_a_list_is_located(tmp_path):
    with pytest.raises(DataError, match=r"row 1 .*column c: the id is null"):
        decode(tmp_path, {"c": [[1], [2, None], [3]]}, slot_missing="error")


@pytest.mark.parametrize("lists", [False, True])
def test_slots_with_the_same_ids_have_the_same_keys_nulls_included(tmp_path, lists):
    items, others = [3, None, 5], [5, 3, None]
    if lists:
        items, others = [[3], None, [5]], [[5], [3], None]
    pq.write_table(pa.table({"label": [0, 1, 0], "item": items, "other": others}), tmp_path / "data.parquet")
    schema = Schema(dense=(), slots=("item", "other"), same_ids={"other": "item"})
    dataset = open_dataset(str(tmp_path / "data.parquet"))
    block = Decoder(schema, check_columns(dataset, schema)).decode(dataset.row_groups[0])
    three, five, null = *make_keys([3, 5], "item"), null_key("item")
    assert block.keys.tolist() == [three, five, null, three, five, null]


# --- slices of Arrow's memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [4, 12, None])
def test_numbers_of_a_slice_are_its_own_and_so_are_its_nulls(absent):
    column = pa.array([None if i == absent else float(i) for i in range(20)], pa.float32()).slice(3, 10)
    out = np.empty(10, np.float32)
    read_floats(column, out)
    expected = np.arange(3, 13, dtype=np.float32)
    if absent is not None:
        expected[absent - 3] = np.nan
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int16(), pa.string(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("absent", [4, 12, None])
def test_keys_of_a_slice_are_those_of_its_own_ids(kind, absent):
    values = [None if i == absent else i for i in range(20)]
    column = pa.array(values, kind) if "int" in str(kind) else pa.array(values).cast(pa.string()).cast(kind)
    whole = key_column(column, "c")
    assert len(set(whole.tolist())) == 20
    assert key_column(column.slice(3, 10), "c").tolist() == whole[3:13].tolist()
    if absent is not None:
        assert whole[absent] == null_key("c")


LISTS = [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)]


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_bags_of_a_slice_are_those_of_its_own_lists(kind):
    lists = [None if i == 7 else [i, 100 + i] for i in range(20)]
    decoder = Decoder(Schema(label="label", dense=(), slots=("c",)), ragged=True)
    group, keep = RowGroup(None, 0, 0, 10), np.ones(10, np.bool_)
    keys, starts, lengths = decoder._bags_of_slot(group, 0, pa.array(lists, kind).slice(3, 10), keep)
    bags = [keys[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]
    assert bags == [[null_key("c")] if one is None else make_keys(one, "c").tolist() for one in lists[3:13]]


@pytest.mark.parametrize("kind", LISTS, ids=str)
@pytest.mark.parametrize("absent", [None, 7])
def test_dense_lists_of_a_slice_are_its_own(kind, absent):
    lists = [None if i == absent else [i, 100 + i] for i in range(20)]
    out = np.empty((10, 2), np.float32)
    _read_lists(RowGroup(None, 0, 0, 10), "x", pa.array(lists, kind).slice(3, 10), out)
    np.testing.assert_array_equal(out, [[np.nan] * 2 if one is None else one for one in lists[3:13]])


def test_whole_floats_are_integer_ids_and_nan_is_missing(tmp_path):
    """Pandas writes integers as floats where some are missing."""
    table = {"c": [1.0, float("nan"), -3.0]}
    block, counts = decode(tmp_path, table)
    assert block.keys.tolist() == make_keys(np.array([1, None, -3], object), "c").tolist()
    assert counts.missing == {"c": 1}
    block, _ = decode(tmp_path, {"c": [[1.0, 2.0], [], None]})
    assert block.keys[:2].tolist() == make_keys([1, 2], "c").tolist()


@pytest.mark.parametrize(
    ("ids", "row"), [([1.0, 2.5], 1), ([1.0, 2.0, 2.0**53 + 2], 2), ([float("inf")], 0), ([[1.0], [], [4.0, 0.1]], 2)]
)
def test_a_float_id_that_is_no_whole_number_is_refused(tmp_path, ids, row):
    with pytest.raises(DataError, match=rf"row {row} .*column c: the id .* is a float that is not a whole number"):
        decode(tmp_path, {"c": ids})
