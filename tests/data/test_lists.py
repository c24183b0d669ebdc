"""Dense columns of lists, and labels of more than two classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.config import Schema
from heterps.data import reader as reader_module
from heterps.data.columns import check_columns
from heterps.data.decode import Block, DecodeCounts, Decoder
from heterps.data.describe import describe
from heterps.data.reader import Reader
from heterps.data.sources import open_dataset
from heterps.errors import ConfigError, DataError

FIXED, LIST, LARGE = pa.list_(pa.float32(), 2), pa.list_(pa.float64()), pa.large_list(pa.int16())
SCHEMA = {"dense": ("x", "image", "y"), "widths": {"image": 2}, "slots": ()}


def decode(folder: Path, images: Any, row_group: int = 0, **schema: Any) -> tuple[Block, DecodeCounts]:
    """One row group (of three rows) of a file with these images between the numbers x and y."""
    length = len(images)
    columns = {"label": [0] * length, "x": [10.0] * length, "image": images, "y": np.arange(length)}
    pq.write_table(pa.table(columns), folder / "data.parquet", row_group_size=3)
    return decode_file(folder / "data.parquet", Schema(**(SCHEMA | schema)), row_group)


def decode_file(path: Path, schema: Schema, row_group: int = 0) -> tuple[Block, DecodeCounts]:
    dataset = open_dataset(str(path))
    decoder = Decoder(schema, check_columns(dataset, schema))
    return decoder.decode(dataset.row_groups[row_group]), decoder.counts


# --- lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FIXED, LIST, LARGE, pa.list_(pa.uint8(), 2), pa.list_(pa.float16(), 2)], ids=str)
def test_lists_become_consecutive_columns_in_the_order_of_the_schema(tmp_path: Path, kind: Any) -> None:
    images = pa.array([[1, 2], [3, 4], [5, 6], [7, 8]]).cast(kind)
    block, counts = decode(tmp_path, images)
    assert block.dense.dtype == np.float32
    assert block.dense.tolist() == [[10, 1, 2, 0], [10, 3, 4, 1], [10, 5, 6, 2]]
    assert decode(tmp_path, images, row_group=1)[0].dense.tolist() == [[10, 7, 8, 3]]
    assert counts.missing == {}


def test_two_lists_beside_each_other_keep_their_places(tmp_path: Path) -> None:
    columns = {
        "label": [0, 1],
        "a": pa.array([[1, 2], [3, 4]], FIXED),
        "b": pa.array([[5], [6]], pa.list_(pa.int8(), 1)),
    }
    pq.write_table(pa.table(columns), tmp_path / "two.parquet")
    schema = Schema(dense=("b", "a"), widths={"a": 2, "b": 1}, slots=())
    assert decode_file(tmp_path / "two.parquet", schema)[0].dense.tolist() == [[5, 1, 2], [6, 3, 4]]


NUMBERS = st.none() | st.just(float("nan")) | st.integers(-9, 9)
IMAGES = st.lists(st.none() | st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=7)


@settings(max_examples=40)
@given(images=IMAGES, kind=st.sampled_from([FIXED, LIST]), policy=st.sampled_from(["fill", "skip"]))
def test_what_is_missing_in_a_list_follows_the_policy(
    tmp_path_factory: pytest.TempPathFactory, images: list[Any], kind: Any, policy: str
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    for group in range((len(images) + 2) // 3):
        part = [[None, None] if image is None else image for image in images[3 * group : 3 * group + 3]]
        block, counts = decode(folder, pa.array(images, kind), group, dense_missing=policy, dense_fill=-7.0)
        absent = [[value is None or value != value for value in image] for image in part]
        filled = [[-7 if gone else v for v, gone in zip(*pair, strict=True)] for pair in zip(part, absent, strict=True)]
        assert block.dense[:, 1:3].tolist() == filled
        assert counts.missing.get("image", 0) == sum(map(sum, absent))
        assert block.rows.tolist() == [i for i, gone in enumerate(absent) if policy == "fill" or not any(gone)]


@pytest.mark.parametrize("image", [None, [1.0, None], [float("nan"), 1.0]])
def test_a_missing_number_is_located_where_the_schema_says_error(tmp_path: Path, image: Any) -> None:
    images = pa.array([[1, 2], [3, 4], [5, 6], [7, 8], image], FIXED)
    with pytest.raises(
        DataError, match=r"row 4 \(row 1 of row group 1\), column image: .* is null or NaN; .*fill or skip"
    ):
        decode(tmp_path, images, row_group=1, dense_missing="error")


def test_an_infinite_number_is_always_an_error_that_says_where(tmp_path: Path) -> None:
    images = pa.array([[1.0, 2.0], [3.0, float("-inf")]], FIXED)
    with pytest.raises(DataError, match=r"row 1 .*column image: number 1 of its list is not finite"):
        decode(tmp_path, images)


def test_a_list_of_another_length_is_located(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 2 .*column image: the list has 3 numbers, .*widths says 2"):
        decode(tmp_path, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0, 7.0]])


@pytest.mark.parametrize(
    ("images", "widths", "message"),
    [
        (pa.array([[1, 2]], FIXED), {}, r"holds lists of 2 numbers\. .*widths: \{image: 2\}"),
        ([[1.0]], {}, r"holds lists of any number of numbers\. .*widths: \{image: N\}"),
        (pa.array([[1, 2]], FIXED), {"image": 3}, r"fixed_size_list<.*>\[2\], but .* needs lists of 3 numbers"),
        ([1.0], {"image": 2}, "type double, but .* needs lists of 2 numbers"),
        ([["a", "b"]], {"image": 2}, "list<.*string>, but .* needs lists of 2 numbers"),
        ([["a", "b"]], {}, "list<.*string>, but .* needs a number"),
    ],
)
def test_a_column_that_does_not_fit_its_width_is_refused(
    tmp_path: Path, images: Any, widths: dict[str, int], message: str
) -> None:
    with pytest.raises(DataError, match=f"column image .*{message}" if "type" in message else message):
        decode(tmp_path, images, widths=widths)


def test_a_width_belongs_to_a_dense_column() -> None:
    assert Schema(**SCHEMA).num_dense == 4
    assert Schema().num_dense == 13
    with pytest.raises(ConfigError, match="widths: z must be among the dense columns: x"):
        Schema(dense=("x",), widths={"z": 2}, slots=())


def test_batches_hold_whole_images_in_every_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "BLOCK_BYTES", 4 * 4 * 20)  # blocks of 20 rows and more
    numbers = np.arange(100, dtype=np.float32)
    images = pa.FixedSizeListArray.from_arrays(np.repeat(numbers, 4), 4)
    table = pa.table({"label": numbers.astype(np.int8) % 3, "image": images})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=7)
    schema = Schema(num_classes=3, dense=("image",), widths={"image": 4}, slots=())
    reader = Reader(str(tmp_path / "data.parquet"), schema, batch_size=30)
    assert len(reader._blocks(0)) == 5, "three groups of 7 rows make 20"
    batches = [batch for batch, _ in reader.read()]
    rows = np.concatenate([batch.dense for batch in batches])
    labels = np.concatenate([batch.label for batch in batches])
    assert (rows == rows[:, :1]).all()
    assert sorted(rows[:, 0]) == numbers.tolist()
    assert (labels == rows[:, 0] % 3).all()
    assert rows[:, 0].tolist() != numbers.tolist()


# --- labels ----------------------------------------------------------------------------------------------------------


def labels(folder: Path, values: Any, num_classes: int, row_group: int = 0) -> list[float]:
    pq.write_table(pa.table({"label": values, "x": [0.0] * len(values)}), folder / "data.parquet", row_group_size=3)
    schema = Schema(num_classes=num_classes, dense=("x",), slots=())
    return decode_file(folder / "data.parquet", schema, row_group)[0].label.tolist()


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int64(), pa.float64()], ids=str)
def test_labels_are_the_numbers_of_classes(tmp_path: Path, kind: Any) -> None:
    assert labels(tmp_path, pa.array([0, 9, 4], kind), 10) == [0, 9, 4]


@pytest.mark.parametrize("wrong", [10, -1, None, 1.5, float("nan"), float("inf")])
def test_a_label_out_of_range_is_located(tmp_path: Path, wrong: float | None) -> None:
    place = r"data\.parquet: row 4 \(row 1 of row group 1\), column label"
    with pytest.raises(DataError, match=f"{place}: a label is a whole number from 0 to 9, this one is "):
        labels(tmp_path, [0, 1, 2, 3, wrong], 10, row_group=1)


def test_two_classes_stay_clicks_and_the_error_tells_how_to_have_more(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a label is 0 or 1, this one is 2; if these are classes, set data\.columns\.num_classes: 3"
    ):
        labels(tmp_path, [0, 1, 2], 2)


# --- describe --------------------------------------------------------------------------------------------------------


def test_lists_of_numbers_are_described_as_dense_with_a_short_example(tmp_path: Path) -> None:
    columns = {
        "image": pa.array([[0.5] * 64], pa.list_(pa.float32(), 64)),
        "floats": [[0.5, 1.5]],
        "ids": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        "words": [["a", "b"]],
    }
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    described = {column.name: column for column in describe(str(tmp_path)).columns}
    roles = {name: column.roles for name, column in described.items()}
    assert roles == {"image": ("dense",), "floats": ("dense",), "ids": ("dense", "slots"), "words": ("slots",)}
    assert described["image"].type.endswith("[64]")
    assert described["image"].example == f"[{', '.join(['0.5'] * 8)}, ... 64 in all]"
