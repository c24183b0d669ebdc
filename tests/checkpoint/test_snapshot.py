"""A snapshot that could not come back as it was is refused when it is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heterps.checkpoint import Snapshot, TableRows

KEYS = np.arange(3, dtype=np.uint64)
VALUES = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((KEYS.astype(np.int64), VALUES, VALUES), "keys must be uint64 with 1 axes and 3 rows, it is int64"),
        ((KEYS, VALUES.astype(np.float64), VALUES), "values must be float32"),
        ((KEYS, VALUES[:2], VALUES), r"values must be .* 3 rows, it is float32 of shape \(2, 2\)"),
        ((KEYS, VALUES, VALUES[:, 0]), r"state must be float32 with 2 axes"),
        ((KEYS, VALUES, VALUES, {}, VALUES[:2, 0], KEYS.astype(np.uint32)), "uses must be float32 .* 3 rows"),
        ((KEYS, VALUES, VALUES, {}, VALUES[:, 0], KEYS), "clock must be uint32"),
    ],
)
def test_rows_of_wrong_type_or_shape_are_refused(arrays: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableRows(*arrays)


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        ({"position": (1, 2)}, "progress.position is a tuple"),
        ({"seed": np.int64(3)}, "progress.seed is a int64"),
        ({"epochs": {1: "done"}}, "progress.epochs has the key 1; JSON knows string keys only"),
        ({"list": [1, {"x": b""}]}, r"progress.list\[1\].x is a bytes"),
    ],
)
def test_progress_that_json_would_change_is_refused_and_the_place_named(progress: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Snapshot(clock=0, samples=0, progress=progress)
    with pytest.raises(ValueError, match=message.replace("progress", "meta")):
        TableRows(KEYS, VALUES, VALUES, progress)


def test_dense_arrays_that_safetensors_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dense\['w'\] is object; allowed: bool, float16"):
        Snapshot(clock=0, samples=0, dense={"w": np.array([None])})
    with pytest.raises(ValueError, match="__metadata__"):
        Snapshot(clock=0, samples=0, dense={"__metadata__": np.zeros(1)})


def test_negative_clocks_are_refused() -> None:
    with pytest.raises(ValueError, match="count from 0, they are -1 and 0"):
        Snapshot(clock=-1, samples=0)
