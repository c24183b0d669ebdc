"""Lookups against numpy.unique, and their sums against np.add.at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heterps.ps.keys.dedup import make_lookup, sum_rows
from heterps.ps.keys.placement import shard_numbers

TOP = 2**64 - 1
key_lists = st.lists(st.one_of(st.integers(0, 30), st.integers(0, TOP)), max_size=300)
shard_counts = st.integers(1, 5)


@given(key_lists, shard_counts)
@example([], 3)
@example([0, TOP, 0], 1)
def test_lookup_says_what_numpy_unique_says(keys, num_shards):
    keys = np.array(keys, np.uint64)
    lookup = make_lookup(keys, num_shards)
    expected, counts = np.unique(keys, return_counts=True)
    order = np.argsort(lookup.unique)
    np.testing.assert_array_equal(lookup.unique[order], expected)
    np.testing.assert_array_equal(np.diff(lookup.starts)[order], counts)
    np.testing.assert_array_equal(lookup.unique[lookup.inverse], keys)


@given(key_lists, shard_counts)
def test_unique_keys_lie_shard_after_shard(keys, num_shards):
    lookup = make_lookup(np.array(keys, np.uint64), num_shards)
    assert lookup.bounds[0] == 0
    assert lookup.bounds[-1] == len(lookup.unique)
    homes = np.repeat(np.arange(num_shards), np.diff(lookup.bounds))
    np.testing.assert_array_equal(shard_numbers(lookup.unique, num_shards), homes)


@given(key_lists, shard_counts)
def test_sources_list_every_position_of_a_key_in_order(keys, num_shards):
    keys = np.array(keys, np.uint64)
    lookup = make_lookup(keys, num_shards)
    for u, key in enumerate(lookup.unique):
        positions = lookup.sources[lookup.starts[u] : lookup.starts[u + 1]]
        np.testing.assert_array_equal(positions, np.flatnonzero(keys == key))


@given(key_lists, shard_counts, st.integers(1, 17))
def test_sum_rows_adds_as_add_at_does(keys, num_shards, dim):
    lookup = make_lookup(np.array(keys, np.uint64), num_shards)
    grads = np.random.default_rng(0).normal(size=(len(keys), dim)).astype(np.float32)
    expected = np.zeros((len(lookup.unique), dim), np.float32)
    np.add.at(expected, lookup.inverse, grads)
    summed = np.full_like(expected, np.nan)
    for first, last in zip(lookup.bounds[:-1], lookup.bounds[1:], strict=True):
        sum_rows(grads, lookup.sources, lookup.starts, first, last, summed)
    np.testing.assert_array_equal(summed, expected)


def test_keys_spread_evenly_over_shards():
    counts = np.bincount(shard_numbers(np.arange(70_000, dtype=np.uint64), 7), minlength=7)
    assert counts.min() > 9_500
    assert counts.max() < 10_500


def test_a_large_batch_without_duplicates_keeps_its_order():
    keys = np.random.default_rng(0).permutation(200_000).astype(np.uint64)
    lookup = make_lookup(keys)
    np.testing.assert_array_equal(lookup.unique, keys)
    np.testing.assert_array_equal(lookup.inverse, np.arange(len(keys)))


def test_signed_keys_keep_their_bits_and_other_types_are_refused():
    np.testing.assert_array_equal(make_lookup(np.array([-1, 5, -1])).unique, np.array([TOP, 5], np.uint64))
    with pytest.raises(TypeError, match="keys must be int64 or uint64, got float64"):
        make_lookup(np.array([0.5]))
