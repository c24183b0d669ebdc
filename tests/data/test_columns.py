import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.config import Schema
from heterps.data.columns import check_columns, id_kind
from heterps.data.sources import open_dataset
from heterps.errors import DataError

SCHEMA = Schema(label="label", dense=("I1",), slots=("C1",))


def check(folder, *tables):
    for i, columns in enumerate(tables):
        pq.write_table(pa.table(columns), folder / f"{i}.parquet")
    return check_columns(open_dataset(str(folder)), SCHEMA)


def columns(label=(0, 1), dense=(0.5, 1.5), slot=(1, 2)):
    return {"label": label, "I1": dense, "C1": slot}


def test_lists_are_told_from_single_ids_over_all_files(tmp_path):
    assert not check(tmp_path, columns())
    assert check(tmp_path, columns(), columns(slot=[[1], [2, 3]]))


def test_missing_columns_are_listed_with_near_matches(tmp_path):
    with pytest.raises(DataError, match=r"names C1, but .*\(C1 may be 'c1'\).*It has: label, I1, c1") as caught:
        check(tmp_path, {"label": [0], "I1": [0.0], "c1": [1]})
    assert "data.columns" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (columns(label=["yes", "no"]), "column label has type string, but data.columns.label needs a number"),
        (columns(dense=["a", "b"]), "column I1 has type string, but data.columns.dense needs a number"),
        (columns(slot=[[[1]], [[2]]]), "column C1 has type list<.*, but data.columns.slots needs an id"),
    ],
)
def test_a_wrong_type_is_named_with_what_is_allowed(tmp_path, table, message):
    with pytest.raises(DataError, match=message):
        check(tmp_path, table)


def test_files_that_disagree_on_the_kind_of_ids_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"1\.parquet: column C1 holds string ids, but integer ids in .*0\.parquet"):
        check(tmp_path, columns(), columns(slot=["a", "b"]))


def test_a_column_of_nulls_agrees_with_any_kind(tmp_path):
    nulls = columns(slot=pa.nulls(2))
    assert not check(tmp_path, nulls, columns(slot=["a", "b"]), nulls)
    with pytest.raises(DataError, match="holds integer ids, but string ids"):
        check(tmp_path, nulls, columns(slot=["a", "b"]), columns())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.uint64(), "integer"),
        (pa.bool_(), "integer"),
        (pa.large_string(), "string"),
        (pa.binary(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.list_(pa.int32(), 3), "integer"),
        (pa.timestamp("s"), None),
        (pa.float32(), "integer"),  # whole numbers, as pandas writes integers with gaps
    ],
)
def test_kinds_of_ids(kind, expected):
    assert id_kind(kind) == expected
