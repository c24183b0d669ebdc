"""Keys that wait for a row: they read initial values, their gradients are dropped and counted."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.config import AfterSightings, Never, WithProbability
from heterps.ps import SGD, SparseTable
from heterps.ps.table.admission import Gate
from heterps.ps.table.rows import Rows


def push(table: SparseTable, keys: np.ndarray | list[int]) -> None:
    table.push(np.asarray(keys, np.uint64), np.ones((len(keys), table.dim), np.float32))


def test_a_key_gets_its_row_with_the_nth_push_and_none_before():
    table = SparseTable(2, SGD(lr=1.0), admission=AfterSightings(num=3))
    start = table.pull([5])
    for seen in (1, 2):
        push(table, [5, 5])
        table.pull([5])
        assert len(table) == 0
        np.testing.assert_array_equal(table.pull([5]), start)
        assert table.counters()[:2] == (0, seen)
    push(table, [5])
    np.testing.assert_array_equal(table.pull([5]), start - 1)
    assert table.counters()[:2] == (1, 2)


def test_rows_that_are_there_are_pushed_whatever_the_gate_says():
    table = SparseTable(1, SGD(lr=1.0), init_scale=0.0, admission=AfterSightings(num=200))
    other = SparseTable(1, SGD(lr=1.0), init_scale=0.0)
    other.pull([1, 2])
    table.put(other.export_rows())
    push(table, [1, 3])
    assert table.pull([1, 2, 3]).ravel().tolist() == [-1, 0, 0]


def test_the_sketch_never_counts_too_little_and_seldom_too_much():
    gate = Gate(AfterSightings(num=4, sketch_bytes=1 << 16), seed=0)
    keys = np.arange(4000, dtype=np.uint64)
    unknown = np.zeros(4000, np.bool_)
    early = sum(gate.admit(keys, unknown, clock).sum() for clock in range(3))
    assert early < 40
    assert gate.admit(keys, unknown, 3).all()


def test_counts_are_halved_so_that_rare_keys_never_get_a_row():
    gate = Gate(AfterSightings(num=2, sketch_bytes=1024), seed=0)
    rare, one = np.array([7], np.uint64), np.zeros(1, np.bool_)
    assert not gate.admit(rare, one, 0)[0]
    gate.admit(np.full(1023, 9, np.uint64), np.zeros(1023, np.bool_), 0)
    assert not gate.admit(rare, one, 0)[0], "one sighting was halved to none"
    assert gate.admit(rare, one, 0)[0]


def test_counts_stop_at_their_highest():
    gate = Gate(AfterSightings(num=255, sketch_bytes=1 << 20), seed=0)
    key, one = np.array([7], np.uint64), np.zeros(1, np.bool_)
    admitted = [bool(gate.admit(key, one, 0)[0]) for _ in range(300)]
    assert admitted == [False] * 254 + [True] * 46


def test_chance_admits_its_share_of_new_keys_and_frequent_ones_in_time():
    table = SparseTable(1, SGD(), admission=WithProbability(p=0.1))
    push(table, np.arange(20_000))
    assert len(table) == pytest.approx(2000, rel=0.1)
    for _ in range(60):
        push(table, np.arange(100))
    assert table.known(np.arange(100)).mean() > 0.95


def test_the_same_push_repeated_admits_the_same_keys():
    first, second = (SparseTable(1, seed=3, admission=WithProbability(p=0.3)) for _ in range(2))
    for keys in (np.arange(500), np.arange(250, 750)):
        push(first, keys)
        push(second, keys[::-1])
    np.testing.assert_array_equal(first.known(np.arange(800)), second.known(np.arange(800)))
    other = SparseTable(1, seed=4, admission=WithProbability(p=0.3))
    push(other, np.arange(500))
    assert (other.known(np.arange(250)) != first.known(np.arange(250))).any()


def test_a_table_that_admits_nobody_trains_the_rows_that_it_has() -> None:
    table = SparseTable(2, SGD(lr=1.0), admission=Never())
    before = table.pull(np.array([1, 2], np.uint64))
    assert len(table) == 0
    keys = np.array([2], np.uint64)
    none = np.zeros((1, 0), np.float32)
    row = Rows(keys, np.ones((1, 2), np.float32), none, np.ones(1, np.float32), np.zeros(1, np.uint32))
    table.import_rows(row, 0, None)
    table.push(np.array([1, 2], np.uint64), np.ones((2, 2), np.float32))
    assert len(table) == 1
    assert table.counters().refused == 1
    assert np.array_equal(table.pull(np.array([1, 2], np.uint64)), [before[0], [0.0, 0.0]])
