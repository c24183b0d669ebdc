"""RowCache: what it returns is what was put, never older than asked, in the memory it was given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.ps.client.row_cache import WAYS, RowCache

DIM = 3
ONE_SET = WAYS * (8 + 8 + 1 + 4 * DIM)


def as_rows(keys: np.ndarray, stamp: int) -> np.ndarray:
    """A row that says which key and stamp it was put with."""
    return np.stack([keys, np.full(len(keys), stamp), keys + stamp], axis=1).astype(np.float32)


def get(cache: RowCache, keys: list[int], oldest: int) -> tuple[np.ndarray, np.ndarray]:
    out = np.full((len(keys), DIM), -1, np.float32)
    return cache.get(np.array(keys, np.uint64), oldest, out), out


def put(cache: RowCache, keys: list[int], stamp: int) -> None:
    cache.put(np.array(keys, np.uint64), as_rows(np.array(keys), stamp), stamp)


some_keys = st.lists(st.integers(0, 60), unique=True, max_size=30)
operations = st.lists(st.tuples(st.sampled_from(["get", "put"]), some_keys, st.integers(-20, 20)), max_size=30)


@settings(max_examples=150)
@given(operations, st.integers(1, 12))
def test_a_hit_is_the_newest_row_put_and_as_new_as_asked(operations, num_sets):
    cache, newest = RowCache(DIM, num_sets * ONE_SET), {}
    for operation, keys, stamp in operations:
        if operation == "put":
            put(cache, keys, stamp)
            for key in keys:  # a row may have been given up since: then the older one is the newest
                newest.setdefault(key, []).append(stamp)
            continue
        hits, out = get(cache, keys, stamp)
        for key, hit, row in zip(keys, hits, out, strict=True):
            if hit:
                assert row[1] >= stamp
                assert row[1] in newest[key]
                np.testing.assert_array_equal(row, as_rows(np.array([key]), int(row[1]))[0])
            else:
                assert (row == -1).all()


def test_a_row_that_arrives_late_does_not_replace_a_newer_one():
    cache = RowCache(DIM, 100 * ONE_SET)
    put(cache, [1, 2], 7)
    put(cache, [2, 3], 5)
    hits, out = get(cache, [1, 2, 3], 5)
    assert hits.all()
    assert out[:, 1].tolist() == [7, 7, 5]
    assert get(cache, [1, 2, 3], 6)[0].tolist() == [True, True, False]


def test_rows_in_use_stay_and_rows_seen_once_go():
    cache = RowCache(DIM, ONE_SET)
    hot = [100, 101, 102]
    put(cache, hot, 0)
    for turn in range(200):
        get(cache, hot, 0)
        put(cache, [1000 + turn], 0)
    assert get(cache, hot, 0)[0].all()
    for turn in range(4000):
        put(cache, [10_000 + turn], 0)
    assert not get(cache, hot, 0)[0].any(), "what is no longer used makes room"


@pytest.mark.parametrize("num_uses", [254, 255, 256, 600])
def test_a_row_that_was_used_more_often_than_can_be_counted_stays(num_uses):
    cache = RowCache(DIM, ONE_SET)
    put(cache, list(range(WAYS)), 0)
    for _ in range(3):
        get(cache, list(range(1, WAYS)), 0)
    for _ in range(num_uses):
        get(cache, [0], 0)
    put(cache, [1000], 0)
    assert get(cache, [0, 1000], 0)[0].all()
    assert get(cache, list(range(1, WAYS)), 0)[0].sum() == WAYS - 2


def test_memory_is_what_was_given_and_too_little_is_refused():
    assert ONE_SET * 9 < RowCache(DIM, ONE_SET * 10 + 5).num_bytes <= ONE_SET * 10 + 5
    with pytest.raises(ValueError, match=f"dim 3 needs at least {ONE_SET} bytes, got {ONE_SET - 1}"):
        RowCache(DIM, ONE_SET - 1)


def test_key_0_is_not_there_before_it_is_put():
    cache = RowCache(DIM, ONE_SET)
    assert not get(cache, [0], -(10**9))[0].any()
    put(cache, [0], -5)
    assert get(cache, [0], -5)[0].all()
