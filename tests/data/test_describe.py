import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.data.describe import describe
from heterps.data.keys import make_keys, null_key
from heterps.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for i in range(2):
        table = {
            "label": [0, 1, 1],
            "x": [1.5, None, 2.0],
            "c": ["a", None, None],
            "n": pa.array([None, 1, 2], pa.int64()),
            "bag": [[1, 2], [], [3]],
            "day": pa.array([0, 1, 2], pa.date32()),
        }
        pq.write_table(pa.table(table), tmp_path / f"{i}.parquet", row_group_size=2)
    return tmp_path


def test_totals_and_the_mean_of_the_label(folder):
    description = describe(str(folder))
    assert (description.files, description.rows, description.row_groups) == (2, 6, 4)
    assert description.file_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert description.label_mean == pytest.approx(2 / 3)


def test_columns_with_types_roles_nulls_examples_and_keys(folder):
    columns = {column.name: column for column in describe(str(folder)).columns}
    assert list(columns) == ["label", "x", "c", "n", "bag", "day"]
    assert {name: column.roles for name, column in columns.items()} == {
        "label": ("label",),
        "x": ("dense",),
        "c": ("slots",),
        "n": ("dense", "slots"),
        "bag": ("slots",),
        "day": (),
    }
    assert [columns[name].nulls for name in ("label", "x", "c", "n")] == [0, 2, 4, 2]
    assert (columns["c"].example, columns["c"].key) == ("a", make_keys(["a"], "c")[0])
    assert (columns["n"].example, columns["n"].key) == (None, null_key("n"))
    assert (columns["bag"].example, columns["bag"].key) == ("[1, 2]", None)
    assert columns["bag"].nulls is None
    assert columns["x"].type == "double"


def test_nulls_are_unknown_where_footers_do_not_tell(tmp_path):
    pq.write_table(pa.table({"x": [1, None]}), tmp_path / "a.parquet", write_statistics=False)
    assert describe(str(tmp_path)).columns[0].nulls is None


def test_without_the_label_column_there_is_no_mean(folder):
    description = describe(str(folder), label="click")
    assert description.label is None
    assert description.label_mean is None


def test_files_with_other_columns_are_refused(folder):
    pq.write_table(pa.table({"label": [0], "y": [1]}), folder / "2.parquet")
    with pytest.raises(DataError, match=r"2\.parquet: this file and .*0\.parquet differ in columns \(bag, c"):
        describe(str(folder))
