"""Rows that go: by age, by faded uses and by a byte ceiling; in bounded steps, with a log."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.config import Eviction
from heterps.ps import SGD, SparseTable
from heterps.ps.table import eviction as eviction_module
from heterps.ps.table.eviction import EvictionLog
from heterps.ps.table.rows import Rows


def make(**policy) -> SparseTable:
    return SparseTable(2, SGD(lr=1.0), eviction=Eviction(**policy))


def bytes_of(num_rows: int, entries: int = 1024) -> int:
    """Memory of rows, of an index with so many entries of 8 bytes, and of the one of half its size before it."""
    return num_rows * SparseTable(2, SGD()).row_bytes + 8 * entries + 8 * entries // 2


def push(table: SparseTable, keys: np.ndarray | list[int], times: int = 1) -> None:
    for _ in range(times):
        table.push(np.asarray(keys, np.uint64), np.ones((len(keys), table.dim), np.float32))


def test_rows_go_when_they_were_not_used_for_max_age_and_begin_anew():
    table = make(max_age=5)
    start = table.pull([1])
    push(table, [1, 2])
    push(table, [2], times=5)
    assert table.known([1, 2]).all()
    push(table, [2])
    assert table.known([1, 2]).tolist() == [False, True]
    np.testing.assert_array_equal(table.pull([1]), start)
    assert table.counters().evicted == {"age": 1, "uses": 0, "bytes": 0}


def test_rows_go_when_their_uses_have_faded():
    table = make(min_uses=1.0, half_life=10)
    push(table, [1])  # uses: 2
    push(table, [2], times=9)
    assert table.known([1])[0]
    push(table, [2], times=3)
    assert table.known([1, 2]).tolist() == [False, True]
    assert table.counters().evicted["uses"] == 1


@pytest.mark.parametrize(("order", "stays"), [("lfu", 1), ("lru", 2)])
def test_the_ceiling_takes_the_least_used_or_the_longest_unused(order, stays):
    table = make(max_bytes=bytes_of(2), order=order)
    push(table, [1], times=9)
    push(table, [2])
    push(table, [3], times=3)
    assert len(table) == 2
    assert table.known([1, 2, 3]).tolist() == [stays == 1, stays == 2, True]


def test_the_ceiling_holds_after_every_push_however_large():
    table = make(max_bytes=bytes_of(1000, entries=2048))
    rng = np.random.default_rng(0)
    for _ in range(10):
        push(table, np.unique(rng.integers(0, 2**63, 5000)))
        assert len(table) == 1000
    assert table.counters().evicted["bytes"] == table.counters().admitted - 1000


@pytest.mark.parametrize("max_bytes", [20_000, 300_000, 1_000_000, 4_000_000])
@pytest.mark.parametrize("dim", [2, 16])
def test_rows_and_index_stay_below_the_ceiling_and_use_most_of_it(max_bytes: int, dim: int) -> None:
    table = SparseTable(dim, eviction=Eviction(max_bytes=max_bytes))
    rng = np.random.default_rng(0)
    per_push = max_bytes // table.row_bytes // 8
    for _ in range(15):
        keys = np.unique(rng.integers(0, 2**63, per_push))
        table.pull(keys)
        assert table.num_bytes <= max_bytes, "before the push of what was pulled"
        push(table, keys)
        assert table.num_bytes <= max_bytes
    assert table.num_bytes > 0.6 * max_bytes


def test_one_call_passes_a_bounded_number_of_rows():
    table = make(max_age=1)
    table.pull(np.arange(10_000))
    table.num_pushes = 100
    assert [table.evict(step=300), table.evict(step=300)] == [300, 300]
    assert len(table) == 9400
    for _ in range(100):
        table.evict(step=300)
    assert len(table) == 0


def test_one_call_takes_no_more_rows_for_the_ceiling_than_it_passes():
    table = make(max_bytes=bytes_of(100))
    table.push_unique(np.arange(140), np.ones((140, 2), np.float32), evict=False)
    assert [table.evict(step=15) for _ in range(4)] == [15, 15, 10, 0]
    assert len(table) == 100


def test_nothing_goes_where_nothing_was_said():
    table = SparseTable(1)
    push(table, np.arange(100))
    table.num_pushes = 10**9
    assert table.evict(10**6) == 0
    assert table.evictions().size == 0


def test_the_log_says_what_went_why_when_and_how_used():
    table = make(max_age=3, max_bytes=bytes_of(2))
    push(table, [1], times=2)
    push(table, [2], times=2)
    push(table, [2, 3])
    push(table, [2])
    log = table.evictions()
    assert log[["key", "reason", "clock"]].tolist() == [(3, "bytes", 5), (1, "age", 6)]
    np.testing.assert_allclose(log["uses"], [2, 3], rtol=0.01)


def test_rows_of_two_reasons_go_in_one_pass_and_no_others():
    """Rows move while others go: whose turn it is must be known before the first has gone."""
    table, keys = make(max_age=10, min_uses=1.0), np.arange(300, dtype=np.uint64)
    kind = keys % 3
    uses = np.where(kind == 1, 0.5, 5).astype(np.float32)
    clock = np.where(kind == 0, 50, 100).astype(np.uint32)
    table.put(Rows(keys, np.zeros((300, 2), np.float32), np.zeros((300, 0), np.float32), uses, clock))
    table.num_pushes = 100
    assert table.evict(1000) == 200
    np.testing.assert_array_equal(table.known(keys), kind == 2)
    log = table.evictions()
    assert sorted(log["key"][log["reason"] == "age"].tolist()) == keys[kind == 0].tolist()
    assert sorted(log["key"][log["reason"] == "uses"].tolist()) == keys[kind == 1].tolist()


@pytest.mark.parametrize(("uses", "goes"), [(1.0, False), (0.999, True)])
def test_a_row_with_just_as_many_uses_as_it_needs_stays(uses: float, goes: bool):
    table, key = make(min_uses=1.0), np.array([7], np.uint64)
    header = np.array([uses], np.float32), np.array([100], np.uint32)
    table.put(Rows(key, np.zeros((1, 2), np.float32), np.zeros((1, 0), np.float32), *header))
    table.num_pushes = 100
    assert table.evict(10) == goes


def test_the_log_keeps_the_latest_in_order(monkeypatch):
    monkeypatch.setattr(eviction_module, "LOG_LENGTH", 5)
    log = EvictionLog()
    for clock, keys in enumerate(([1, 2, 3], [4, 5], [6], [7, 8, 9, 10, 11, 12, 13])):
        log.note("age", np.array(keys, np.uint64), np.ones(len(keys), np.float32), clock)
        if clock == 2:
            assert log.entries()["key"].tolist() == [2, 3, 4, 5, 6]
    assert log.entries()["key"].tolist() == [9, 10, 11, 12, 13]
    assert log.counts["age"] == 13
