"""DenseRange: pieces that have taken different pushes, until they have come to the same ones."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import msgpack

from heterps.config import SGD
from heterps.ps.protocol.messages import Round
from heterps.ps.protocol.parts import ValuePart
from heterps.ps.protocol.specs import DenseSpec
from heterps.ps.shard.dense_range import DensePart, DenseRange
from heterps.ps.shard.ledger import Ledger, PushSource
from heterps.ps.shard.rounds import Contribution

SPEC = DenseSpec("dense", 10, SGD(lr=1.0))
WORKERS = PushSource("a", 1), PushSource("b", 1)


def make_range(first: int = 0, stop: int = 10) -> DenseRange:
    return DenseRange(SPEC, slice(first, stop))


def push(dense: DenseRange, source: PushSource, sequence: int, value: float, round: Round | None = None) -> None:
    dense.push(source, sequence, Contribution(None, np.full(dense.size, value, np.float32), None), round)


def part(first: int, num: int, ledger: Ledger) -> DensePart:
    return DensePart(ValuePart(first, np.zeros(num, np.float32), np.zeros((0, num), np.float32)), True, ledger)


def test_pieces_left_of_and_right_of_a_hole_count_their_pushes_apart() -> None:
    dense = make_range()
    dense.cut(slice(3, 6))
    assert len(dense.pieces) == 2
    for sequence in (1, 2, 2):
        push(dense, WORKERS[0], sequence, 1.0)
    np.testing.assert_array_equal(dense.values(), np.full(7, -2, np.float32))
    assert dense.num_steps == 2


def test_a_range_has_seen_as_many_steps_as_its_piece_that_has_seen_the_fewest() -> None:
    dense = make_range()
    behind = dense.cut(slice(5, 10))
    for sequence in (1, 2, 3):
        push(dense, WORKERS[0], sequence, 1.0)
    dense.load(behind)
    assert (len(dense.pieces), dense.num_steps) == (2, 0)
    for sequence, num_steps in ((1, 1), (2, 2), (3, 3)):
        push(dense, WORKERS[0], sequence, 1.0)
        assert dense.num_steps == num_steps
    assert len(dense.pieces) == 1
    np.testing.assert_array_equal(dense.values(), np.full(10, -3, np.float32))


def test_pieces_that_keep_contributions_are_not_joined_before_their_round_ends() -> None:
    """One piece of both would have lost what they keep."""
    dense = make_range()
    behind = dense.cut(slice(5, 10))
    push(dense, WORKERS[0], 1, 2.0, Round(1, 0, 2))
    dense.load(behind)
    push(dense, WORKERS[0], 1, 2.0, Round(1, 0, 2))
    assert [len(piece.stash) for piece in dense.pieces] == [1, 1]
    assert len({msgpack.encode(piece.ledger) for piece in dense.pieces}) == 1
    push(dense, WORKERS[1], 1, 3.0, Round(1, 1, 2))
    assert len(dense.pieces) == 1
    np.testing.assert_array_equal(dense.values(), np.full(10, -5, np.float32))


@pytest.mark.parametrize(("first", "num"), [(1, 3), (2, 1), (8, 3), (9, 1)])
def test_values_beyond_the_range_are_refused_and_change_nothing(first: int, num: int) -> None:
    dense = make_range(3, 9)
    dense.cut(slice(3, 9))
    with pytest.raises(ValueError, match="values beyond 3 to 8 of table dense"):
        dense.load([part(first, num, Ledger())])
    assert len(dense.pieces) == 0
    dense.load([part(3, 6, Ledger())])
    assert len(dense.pieces) == 1


@pytest.mark.parametrize(("first", "num"), [(0, 10), (4, 2), (5, 5), (9, 1)])
def test_values_that_are_here_are_not_taken_again(first: int, num: int) -> None:
    dense = make_range()
    dense.cut(slice(0, 4))
    with pytest.raises(ValueError, match=r"value \d of table dense came twice"):
        dense.load([part(first, num, Ledger())])
    assert (len(dense.pieces), len(dense.values())) == (1, 6)
