import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.data.describe import describe
from heterps.data.distinct import DistinctCounter
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
    assert [columns[name].missing for name in ("label", "x", "c", "n")] == [0, 2, 4, 2]
    assert (columns["c"].example, columns["c"].key) == ("a", make_keys(["a"], "c")[0])
    assert (columns["n"].example, columns["n"].key) == (None, null_key("n"))
    assert (columns["bag"].example, columns["bag"].key) == ("[1, 2]", None)
    assert columns["x"].type == "double"


def test_missing_values_are_counted_also_in_lists_and_as_nan(tmp_path):
    columns = {"x": [1.0, None, float("nan"), 4.0], "bag": [[1, None], None, [], [2, 2]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", write_statistics=False)
    x, bag = describe(str(tmp_path)).columns
    assert (x.missing, x.missing_share) == (2, 0.5)
    assert (bag.missing, bag.missing_share, bag.distinct) == (2, 2 / 5, 2)
    assert (x.min, x.mean, x.max) == (1.0, 2.5, 4.0)


def test_figures_are_those_of_numpy_over_all_row_groups(tmp_path):
    draw = np.random.default_rng(0)
    x, ids = draw.normal(size=5000), draw.integers(0, 900, 5000)
    table = pa.table({"x": x, "id": ids, "whole": ids.astype(float), "name": [f"n{i % 700}" for i in ids]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    columns = {column.name: column for column in describe(str(tmp_path)).columns}
    assert (columns["x"].min, columns["x"].max) == (x.min(), x.max())
    assert columns["x"].mean == pytest.approx(x.mean())
    assert columns["x"].distinct is None
    assert columns["x"].roles == ("dense",)
    assert columns["id"].distinct == columns["whole"].distinct == len(np.unique(ids))
    assert columns["whole"].roles == ("dense", "slots")
    assert columns["name"].distinct == len(np.unique(ids % 700))


def test_a_part_of_the_rows_is_from_all_over_the_data(tmp_path):
    pq.write_table(pa.table({"x": range(10_000)}), tmp_path / "a.parquet", row_group_size=100)
    described = describe(str(tmp_path), max_rows=1000)
    assert (described.rows, described.rows_read) == (10_000, 1000)
    assert described.columns[0].mean == pytest.approx(5000, rel=0.5)


@pytest.mark.parametrize(
    ("values", "kind", "problem"),
    [
        ([0, 1, 1], "binary", None),
        ([True, False, True], "binary", None),
        ([0.0, 0.0, 0.0], "binary", "every value is 0"),
        ([0, 1, None], "binary", "1 values are missing"),
        ([0, 1, 2], "classes", None),
        ([1.5, 3.0, -1.0], "number", None),
        ([None, None, float("nan")], None, "every value is missing"),
        ([0.0, 1.0, float("inf")], None, "some values are infinite"),
    ],
)
def test_a_label_is_judged(tmp_path, values, kind, problem):
    pq.write_table(pa.table({"label": values, "x": [1, 2, 3]}), tmp_path / "a.parquet")
    described = describe(str(tmp_path))
    assert described.label_kind == kind
    assert (described.label_problem or "").startswith(problem or "")
    assert (described.label_problem is None) == (problem is None)


def test_distinct_keys_are_exact_while_few_and_near_when_many():
    draw = np.random.default_rng(0)
    counter = DistinctCounter()
    few = draw.integers(0, 2**64 - 1, 40_000, np.uint64)
    for part in np.split(np.concatenate([few, few]), 20):
        counter.add(part)
    assert (counter.count, counter.is_exact) == (40_000, True)
    for part in np.split(draw.integers(0, 2**64 - 1, 960_000, np.uint64), 10):
        counter.add(part)
        counter.add(few)
    assert not counter.is_exact
    assert counter.count == pytest.approx(1_000_000, rel=0.025)  # three standard errors


def test_without_the_label_column_there_is_no_mean(folder):
    description = describe(str(folder), label="")
    assert description.label is None
    assert description.label_mean is None
    with pytest.raises(DataError, match=r"there is no column 'labels'. Did you mean 'label'\?"):
        describe(str(folder), label="labels")


def test_files_with_other_columns_are_refused(folder):
    pq.write_table(pa.table({"label": [0], "y": [1]}), folder / "2.parquet")
    with pytest.raises(DataError, match=r"2\.parquet: this file and .*0\.parquet differ in columns \(bag, c"):
        describe(str(folder))
