"""The hand of eviction: every row once a round, in an order that follows from the keys alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference_table import mix64

from heterps.config import Eviction, Tiers
from heterps.ps import SGD, SparseTable
from heterps.ps.table.hand import NUM_TAGS, Hand, Headers
from heterps.ps.table.tiers import TieredTable


class Tags:
    """Rows that are nothing but tags; a place is the position."""

    def __init__(self, tags: list[int]) -> None:
        self.tags = np.array(tags, np.uint32)

    def __len__(self) -> int:
        return len(self.tags)

    def in_tags(self, low: int, high: int) -> Headers:
        places = np.flatnonzero((self.tags >= low) & (self.tags < high))
        return Headers(self.tags[places], np.zeros(len(places), np.float32), self.tags[places] * 0, places)


def passed(hand: Hand, rows: Tags, num: int) -> list[int]:
    return hand.advance(rows, num).tags.tolist()


def test_it_goes_up_and_round_the_end():
    hand, rows = Hand(), Tags([7, NUM_TAGS - 1, 3, 100])
    assert [passed(hand, rows, 2) for _ in range(3)] == [[3, 7], [100, NUM_TAGS - 1], [3, 7]]
    assert hand.at == 8
    assert passed(hand, rows, 3) == [100, NUM_TAGS - 1, 3]
    assert passed(hand, rows, 99) == [7, 100, NUM_TAGS - 1, 3]


def test_rows_of_one_tag_are_passed_together():
    hand, rows = Hand(), Tags([5, 5, 5, 9])
    assert passed(hand, rows, 1) == [5, 5, 5]
    assert passed(hand, rows, 1) == [9]


def test_nothing_is_passed_where_nothing_is_asked_or_there():
    hand = Hand(77)
    assert passed(hand, Tags([]), 5) == []
    assert passed(hand, Tags([1]), 0) == []
    assert hand.at == 77


def test_tags_that_lie_in_a_heap_are_all_found():
    rows = Tags([2**31 + i for i in range(1000)])
    hand = Hand(5)
    rounds = [passed(hand, rows, 300) for _ in range(4)]
    assert [*rounds[0], *rounds[1], *rounds[2], *rounds[3][:100]] == rows.tags.tolist()


def walk(table: SparseTable | TieredTable, step: int) -> list[list[int]]:
    hand = Hand(12345)
    rows = table.store if isinstance(table, SparseTable) else table
    return [hand.advance(rows, step).tags.tolist() for _ in range(len(rows) // step + 2)]


def sparse(keys: np.ndarray, **kinds) -> SparseTable:
    table = SparseTable(2, SGD(), **kinds)
    for part in np.array_split(keys, max(len(keys) // 40, 1)):
        table.pull(part)
    return table


@pytest.mark.parametrize("num_keys", [1, 90, 720, 800, 3000])
@pytest.mark.parametrize("step", [1, 64, 1000])
def test_the_order_is_that_of_the_tags_whatever_has_become_of_the_table(num_keys, step):
    rng = np.random.default_rng(num_keys)
    keys = rng.permutation(20_000)[:num_keys]
    tags = sorted(mix64(key) >> 32 for key in keys.tolist())
    begin = int(np.searchsorted(tags, 12345)) % num_keys
    table, other = sparse(keys), sparse(rng.permutation(keys))
    once = step // num_keys + 2
    expected = (tags[begin:] + tags[:begin]) * once
    assert walk(table, step)[0] == expected[: min(step, num_keys)]
    assert walk(table, step) == walk(other, step)
    shrunk = sparse(rng.permutation(20_000))
    shrunk.take(np.setdiff1d(np.arange(20_000), keys))
    assert walk(shrunk, step) == walk(table, step)


def test_rows_are_found_by_tags_in_every_state_of_growth():
    table, expected, growing = SparseTable(1, SGD()), {}, set()
    for key in range(3000):
        table.pull([key])
        expected[key] = mix64(key) >> 32
        if key % 97 == 0:
            growing.add(table.store.is_growing)
            low, high = sorted(np.random.default_rng(key).integers(0, NUM_TAGS, 2).tolist())
            found = table.store.in_tags(low, high)
            wanted = {each for each, tag in expected.items() if low <= tag < high}
            assert set(table.store.keys_at(found.places).tolist()) == wanted
            assert sorted(found.tags.tolist()) == sorted(expected[each] for each in wanted)
    assert growing == {True, False}


@pytest.mark.parametrize("policy", [Eviction(), Eviction(max_age=5)])
def test_rows_on_disk_are_in_the_order_too(policy: Eviction, tmp_path: Path):
    keys = np.random.default_rng(0).permutation(9000)
    plain = sparse(keys, eviction=policy)
    tiered = TieredTable(SparseTable(2, SGD(), eviction=policy), Tiers(memory_bytes=300_000, folder=str(tmp_path)))
    tiered.pull(keys)
    while tiered.step():
        pass
    assert tiered.counts.disk_rows > 1000
    both = tiered._both
    assert walk(both, 700) == walk(plain, 700)
    seen, expected = Hand().advance(both, 9000), Hand().advance(plain.store, 9000)
    np.testing.assert_array_equal(both.keys_at(seen.places), plain.store.keys_at(expected.places))
    np.testing.assert_array_equal(seen.uses, expected.uses)
    np.testing.assert_array_equal(seen.clocks, expected.clocks)
    tiered.close()
