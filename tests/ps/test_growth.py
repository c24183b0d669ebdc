"""The index grows in small steps: no call moves more than a bound, and every key is found all the while."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.ps import SGD, SparseTable
from heterps.ps.table.store import LEAST_INDEX, MAX_LOAD, MOVES_PER_KEY

LONGEST_RUN = 600


@pytest.mark.parametrize("batch", [1, 10, 1000, 20_000])
def test_no_call_moves_more_than_a_few_entries_for_each_of_its_keys(batch):
    table = SparseTable(1, SGD())
    rng = np.random.default_rng(0)
    table.pull(rng.integers(0, 2**63, 45_000))  # close to the load at which an index of 65,536 grows
    grown, most = 0, 0
    for _ in range(40_000 // batch + 1):
        before, was_growing = table.store.num_moved, table.store.is_growing
        table.pull(rng.integers(0, 2**63, batch))
        most = max(most, table.store.num_moved - before)
        grown += table.store.is_growing and not was_growing
    assert grown or batch == 20_000
    assert 0 < most <= MOVES_PER_KEY * batch + LONGEST_RUN


def test_keys_are_found_taken_and_created_in_every_state_of_growth():
    table = SparseTable(1, SGD(lr=1.0), init_scale=0.0)
    keys = np.random.default_rng(1).integers(0, 2**63, 6000)
    expected: dict[int, int] = {}
    states = set()
    for i, key in enumerate(keys.tolist()):
        table.push([key], -np.ones((1, 1)))
        expected[key] = 1
        states.add(table.store.is_growing)
        if i % 7 == 0:
            gone = keys[i // 2 : i // 2 + 3]
            assert table.take(gone).keys.size == sum(expected.pop(k, 0) for k in gone.tolist())
        if i % 500 == 0:
            seen = keys[: i + 1]
            np.testing.assert_array_equal(table.known(seen), [k in expected for k in seen.tolist()])
    assert states == {True, False}
    assert set(table.export_rows().keys.tolist()) == set(expected)
    assert table.pull(np.array(list(expected)), create=False).min() == 1


def test_an_index_is_never_fuller_than_its_limit_and_gives_the_old_one_back():
    table = SparseTable(2, SGD())
    for first in range(0, 60_000, 500):
        table.pull(np.arange(first, first + 500))
    table.pull(np.arange(60_000))
    assert not table.store.is_growing
    size = LEAST_INDEX
    while MAX_LOAD * size < 60_000:
        size *= 2
    assert table.num_bytes == 60_000 * table.row_bytes + 8 * size
