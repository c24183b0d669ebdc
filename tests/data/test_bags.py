"""Slots made by hand have the keys that a file with the same ids gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import heterps
from heterps.config import Data, Schema
from heterps.config.job import Job
from heterps.data.keys import make_keys, null_key
from heterps.data.reader import open_reader
from heterps.errors import DataError


@pytest.mark.parametrize(
    "ids",
    [
        {"user": ["ann", "bob", None], "item": [7, 2**40, -1]},
        {"user": ["ann", "bob", "ann"], "tags": [["a", "b"], [], None]},
        {"tags": [[1, 2, None], [3], []], "user": [1.0, None, 3.0]},
        {"tags": [[], [], []], "user": [None, None, None]},
    ],
)
def test_bags_have_the_keys_of_a_file_with_these_ids(tmp_path: Path, ids: dict[str, list[Any]]) -> None:
    pq.write_table(pa.table({"label": [0, 1, 0], **ids}), tmp_path / "x.parquet")
    columns = Schema(dense=[], slots=list(ids))
    data = Data(train=str(tmp_path / "x.parquet"), columns=columns, batch_size=3, shuffle=False)
    ((batch, _),) = list(open_reader(Job(data=data)).read())
    made = heterps.bags(ids)
    assert made.names == tuple(ids)
    assert made.keys.tolist() == batch.slots.keys.tolist()
    if batch.slots.offsets is not None:
        assert made.offsets is not None
        assert made.offsets.tolist() == batch.slots.offsets.tolist()


def test_arrays_and_tensors_are_taken_and_single_ids_need_no_offsets() -> None:
    made = heterps.bags({"a": np.array([1, 2]), "b": torch.tensor([[3, 4], [5, 6]])})
    assert made.keys.tolist() == [
        *make_keys([1], "a"), *make_keys([3, 4], "b"), *make_keys([2], "a"), *make_keys([5, 6], "b")
    ]  # fmt: skip
    single = heterps.bags({"a": [1, 2], "b": ["x", None]}, same_ids={"b": "a"})
    assert single.offsets is None
    assert single.keys.tolist() == [*make_keys([1], "a"), *make_keys(["x"], "a"), *make_keys([2], "a"), null_key("a")]


def test_a_module_takes_bags_of_strings() -> None:
    module = heterps.nn.SparseEmbedding(["tags"], dim=3).eval()
    single = module(heterps.bags({"tags": ["x", "y"]}))
    both = module(heterps.bags({"tags": [["x", "y"], []]}))
    assert torch.allclose(both[0, 0], single[0, 0] + single[1, 0])
    assert not both[1].any()


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (["ann"], "bags are made of ids by slot"),
        ({}, "bags are made of ids by slot"),
        ({"a": [1, 2], "b": [1]}, "the same number of samples, but a has 2, b has 1"),
        ({"a": [1, "x"]}, "slot a: .*Write ids of one kind"),
        ({"a": [1.5]}, "slot a: ids must be integers or strings"),
        ({"a": [{"x": 1}]}, "slot a: ids must be integers or strings"),
        ({"a": [2**70]}, "slot a: .*Write ids of one kind"),
    ],
)
def test_what_cannot_be_ids_is_refused_with_a_sentence(ids: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        heterps.bags(ids)
