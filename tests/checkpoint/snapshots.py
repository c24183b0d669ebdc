"""Snapshots for the tests of the checkpoint room, and what it means that two are the same: every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.checkpoint import Snapshot, TableRows


def make(clock: int, *, num_rows: int = 5) -> Snapshot:
    """A small snapshot that differs in every part from that of another clock."""
    generator = np.random.default_rng(clock)
    return Snapshot(
        clock=clock,
        samples=clock * 100,
        dense={"mlp.0.weight": generator.random((3, 2), np.float32), "mlp.0.step": np.array(clock)},
        tables={
            "user": TableRows(
                generator.integers(0, 2**64, num_rows, np.uint64),
                generator.random((num_rows, 4), np.float32),
                generator.random((num_rows, 1), np.float32),
                {"dim": 4, "optimizer": {"kind": "adagrad", "lr": 0.05}},
                generator.random(num_rows, np.float32),
                generator.integers(0, 2**32, num_rows, np.uint32),
                {"hand": np.array([clock]), "sketch": generator.integers(0, 256, (1, 8), np.uint8)},
            ),
            "item/ads.v2": TableRows(
                np.empty(0, np.uint64), np.empty((0, 8), np.float32), np.empty((0, 0), np.float32)
            ),
        },
        progress={"epoch": 1, "row_group": clock, "random": [1.5, None, "é"]},
    )


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    assert (found.clock, found.samples) == (expected.clock, expected.samples)
    assert found.progress == expected.progress
    assert list(found.tables) == list(expected.tables)
    assert set(found.dense) == set(expected.dense)
    for name, array in expected.dense.items():
        assert_same_bits(found.dense[name], array)
    for name, rows in expected.tables.items():
        assert found.tables[name].meta == rows.meta
        assert len(found.tables[name]) == len(rows)
        found_rows = found.tables[name].whole()
        for part in ("keys", "values", "state", "uses", "clock"):
            assert_same_bits(getattr(found_rows, part), getattr(rows, part))
        assert set(found.tables[name].metadata) == set(rows.metadata)
        for part, array in rows.metadata.items():
            assert_same_bits(found.tables[name].metadata[part], array)


def assert_same_bits(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
