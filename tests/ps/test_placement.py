"""Keys have homes that do not depend on who asks, and one more shard moves only what it must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.ps.keys.placement import NUM_SLOTS, owners, shard_numbers, slots_of

KEYS = np.random.default_rng(0).integers(0, 2**64, 40_000, np.uint64)


@settings(max_examples=30)
@given(num_shards=st.integers(1, 200))
def test_one_more_shard_takes_its_share_and_moves_nothing_else(num_shards: int) -> None:
    before, after = shard_numbers(KEYS, num_shards), shard_numbers(KEYS, num_shards + 1)
    moved = before != after
    assert (after[moved] == num_shards).all()
    assert moved.mean() == pytest.approx(1 / (num_shards + 1), rel=0.5)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 8, 32])
def test_shards_have_about_equal_shares(num_shards: int) -> None:
    shares = np.bincount(owners(num_shards), minlength=num_shards) / NUM_SLOTS
    assert len(shares) == num_shards
    np.testing.assert_allclose(shares, 1 / num_shards, rtol=0.2)


def test_neighbouring_keys_are_spread_over_the_slots() -> None:
    counts = np.bincount(slots_of(np.arange(100 * NUM_SLOTS, dtype=np.uint64)), minlength=NUM_SLOTS)
    assert counts.min() > 50
    assert counts.max() < 160


def test_homes_never_change_between_versions() -> None:
    """Checkpoints survive any change, servers that run do not: two versions in one job must agree."""
    assert owners(5)[:12].tolist() == [0, 3, 0, 1, 0, 4, 4, 0, 1, 2, 4, 3]


def test_a_number_of_shards_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="num_shards must be at least 1 and at most 16,384, got 0"):
        owners(0)
