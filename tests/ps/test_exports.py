"""Exports: copies of tables, handed out part by part, and let go of in time."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.ps.protocol import parts as parts_module
from heterps.ps.protocol.parts import ValuePart
from heterps.ps.shard import exports
from heterps.ps.shard import transfer as transfer
from heterps.ps.shard.exports import Exports, Page

GONE = Page(0, 0)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Exports:
    """An export of ten values in five parts, of which the first was given."""
    monkeypatch.setattr(parts_module, "PART_BYTES", 8)
    kept = Exports()
    first = kept.begin("worker", "dense", 1, 7, ValuePart(0, np.arange(10, dtype=np.float32), np.empty((0, 10))))
    assert (first.num_pushes, first.num_parts) == (7, 5)
    return kept


def test_every_part_is_there_and_none_beyond(kept: Exports) -> None:
    pages = [kept.page("worker", "dense", 1, part) for part in range(5)]
    np.testing.assert_array_equal(np.concatenate([page.part.values for page in pages]), np.arange(10))
    assert kept.page("worker", "dense", 1, 5) == GONE


def test_parts_are_of_the_export_that_was_begun_last(kept: Exports) -> None:
    assert kept.page("worker", "dense", 2, 1) == GONE
    kept.begin("worker", "dense", 2, 8, ValuePart(0, np.zeros(10, np.float32), np.empty((0, 10))))
    assert kept.page("worker", "dense", 1, 1) == GONE, "of another moment than the parts of the second"
    assert kept.page("worker", "dense", 2, 1).num_pushes == 8
    kept.end("worker", "dense", 1)
    assert len(kept) == 1, "the end of the first does not end the second"
    kept.end("worker", "dense", 2)
    assert len(kept) == 0


def test_a_copy_that_is_asked_for_stays_and_one_that_is_not_goes(kept: Exports) -> None:
    for _ in range(3):
        for _ in range(exports.MAX_IDLE_TICKS):
            kept.tick()
        assert kept.page("worker", "dense", 1, 1).num_parts == 5
    for _ in range(exports.MAX_IDLE_TICKS + 1):
        kept.tick()
    assert len(kept) == 0
    assert kept.page("worker", "dense", 1, 1) == GONE
