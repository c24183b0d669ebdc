"""Rows taken out of a table and put in, and which of them are cold."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.ps import SGD, Adam, SparseTable
from heterps.ps.table import sparse
from heterps.ps.table.rows import Rows
from heterps.ps.table.usage import ages_of, faded, make_fading


def push(table: SparseTable, keys: np.ndarray, times: int = 1) -> None:
    for _ in range(times):
        table.push(keys, np.ones((len(keys), table.dim), np.float32))


def test_taken_rows_are_gone_and_the_others_stay_as_they_were():
    table = SparseTable(3)
    keys = np.random.default_rng(0).permutation(20_000)
    push(table, keys)
    before = table.pull(keys)
    taken = table.take(keys[::3])
    np.testing.assert_array_equal(taken.keys.view(np.int64), keys[::3])
    np.testing.assert_array_equal(taken.values, before[::3])
    np.testing.assert_array_equal(table.known(keys), np.arange(20_000) % 3 != 0)
    left = np.delete(np.arange(20_000), np.s_[::3])
    np.testing.assert_array_equal(table.pull(keys[left], create=False), before[left])
    assert len(table) == len(left)


def test_a_key_that_was_taken_begins_anew():
    table = SparseTable(2)
    start = table.pull([7])
    push(table, np.array([7]))
    table.take([7])
    np.testing.assert_array_equal(table.pull([7]), start)


def test_rows_put_into_another_table_come_with_state_and_header():
    first, second = SparseTable(3), SparseTable(3)
    push(first, np.arange(100), times=3)
    second.put(first.take(np.arange(50)))
    second.put(first.take(np.arange(200)))
    rows = second.export_rows()
    assert (len(first), len(second)) == (0, 100)
    np.testing.assert_array_equal(rows.state, np.full((100, 3), 3, np.float32))
    np.testing.assert_allclose(rows.uses, 4, rtol=1e-2)
    np.testing.assert_array_equal(rows.clock, np.full(100, 3, np.uint32))


def test_put_refuses_known_and_doubled_keys_and_changes_nothing():
    table, other = SparseTable(2), SparseTable(2)
    table.pull([5, 6])
    other.pull([4, 5])
    rows = other.export_rows()
    with pytest.raises(ValueError, match=r"1 of 2 rows to put have keys that are in the table, the first is 5"):
        table.put(rows)
    with pytest.raises(ValueError, match="2 rows hold only 1 distinct keys"):
        table.put(rows.select(np.array([0, 0])))
    np.testing.assert_array_equal(table.known([4, 5, 6]), [False, True, True])


def test_the_coldest_are_those_used_least_and_longest_ago():
    table = SparseTable(1, SGD())
    push(table, np.arange(10))
    push(table, np.arange(4, 10), times=5)
    push(table, np.array([0, 1]))
    assert set(table.coldest(2, table.num_pushes).tolist()) == {2, 3}
    assert set(table.coldest(4, table.num_pushes).tolist()) == {0, 1, 2, 3}
    assert set(table.coldest(99, table.num_pushes).tolist()) == set(range(10))
    assert table.coldest(0, 0).size == SparseTable(1).coldest(3, 0).size == 0


def test_old_fame_fades():
    table = SparseTable(1, SGD())
    push(table, np.array([1]), times=50)
    table.num_pushes += 100_000
    push(table, np.array([2]), times=2)
    assert table.coldest(1, table.num_pushes).tolist() == [1]


def test_coldest_of_a_large_table_looks_at_a_sample_and_at_another_the_next_time():
    table = SparseTable(1, SGD())
    push(table, np.arange(10_000))
    push(table, np.arange(0, 10_000, 2))
    first, second = table.coldest(100, 2), table.coldest(100, 2)
    for chosen in (first, second):
        assert len(np.unique(chosen)) == 100
    assert set(first.tolist()) != set(second.tolist())
    assert np.mean(np.concatenate([first, second]) % 2) >= 0.5
    assert sparse.SAMPLE * 100 < 10_000


@pytest.mark.parametrize("half_life", [1, 31, 32, 100, 4096, 10**6])
def test_a_use_counts_half_after_its_half_life(half_life):
    fading = make_fading(half_life)
    clocks = np.zeros(3, np.uint32)
    now, once, twice = (faded(np.float32([8]), clocks[:1], clock, fading)[0] for clock in (0, half_life, 2 * half_life))
    assert now == 8
    assert once == pytest.approx(4, rel=0.03)
    assert twice == pytest.approx(2, rel=0.03)
    assert faded(np.float32([8]), clocks[:1], 2**31 - 1, fading)[0] < 0.001 or half_life == 10**6


def test_ages_survive_the_wrap_of_the_count_and_clocks_ahead_are_new():
    clocks = np.array([2**32 - 3, 4, 9], np.uint32)
    np.testing.assert_array_equal(ages_of(clocks, 2**32 + 5), np.uint32([8, 1, 0]))


def test_rows_that_were_exported_stay_as_they_were_whatever_becomes_of_the_table():
    table = SparseTable(3, Adam(lr=0.1))
    keys = np.arange(50)
    table.push(keys, np.ones((50, 3), np.float32))
    exported = table.export_rows()
    before = [field.copy() for field in exported]
    for _ in range(3):
        table.push(keys, np.ones((50, 3), np.float32))
    now = table.export_rows()
    changed = [name for name, one, other in zip(Rows._fields, exported, now, strict=True) if (one != other).any()]
    assert changed == ["values", "state", "uses", "clock"], "the table has changed all that can change"
    table.take(keys[:20])  # rows move
    for name, field, copy in zip(Rows._fields, exported, before, strict=True):
        np.testing.assert_array_equal(field, copy, err_msg=name)
