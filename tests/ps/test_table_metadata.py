"""What a table knows besides its rows: exact on as many shards, and never too little on others."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.config import SGD, AfterSightings, Eviction
from heterps.ps import SparseTable
from heterps.ps.client.local import LocalClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.metadata import TableCounters, TableMetadata, stack, unstack

ADMISSION = AfterSightings(num=3, sketch_bytes=4096)


def make(hand: int, sightings: int, number: int, sketch: list[int]) -> TableMetadata:
    evicted = {"age": number, "uses": 2 * number, "bytes": 0}
    return TableMetadata(hand, sightings, TableCounters(number, number + 1, evicted), np.array(sketch, np.uint8))


TWO = [make(7, 3, 10, [1, 0, 255]), make(2**32 - 1, 9, 20, [0, 2, 4])]


def test_on_as_many_shards_each_gets_its_own_back():
    for before, after in zip(TWO, unstack(stack(TWO), 2), strict=True):
        assert before[:3] == after[:3]
        np.testing.assert_array_equal(before.sketch, after.sketch)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_on_other_shards_counts_are_the_largest_and_counters_the_sums(num_shards: int):
    shards = unstack(stack(TWO), num_shards)
    assert len(shards) == num_shards
    for shard in shards:
        assert (shard.hand, shard.sightings, shard.sketch.tolist()) == (0, 9, [1, 2, 255])
    assert shards[0].counters == (30, 32, {"age": 30, "uses": 60, "bytes": 0})
    assert all(shard.counters == (0, 0, {"age": 0, "uses": 0, "bytes": 0}) for shard in shards[1:])


def test_where_nothing_was_kept_tables_begin_anew():
    assert unstack({}, 2) == [None, None]


def make_client(num_shards: int) -> LocalClient:
    spec = TableSpec("t", 2, SGD(lr=1.0), 0, 0.1, admission=ADMISSION, eviction=Eviction(max_age=50))
    return LocalClient([spec], {}, num_shards)


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 3)])
def test_a_key_that_waited_on_some_shards_waits_no_longer_on_others(before: int, after: int):
    """With its third push in all it has a row: the sketch never counts too little."""
    keys = np.arange(400)
    first, second = make_client(before), make_client(after)
    for _ in range(2):
        first.push("t", make_lookup(keys, before), np.ones((400, 2), np.float32)).result()
    assert first.num_rows("t") < 8, "hardly any is early"
    rows, num_pushes = first.export_rows("t")
    second.import_rows("t", rows, num_pushes, first.export_metadata("t"))
    assert second.num_rows("t") == first.num_rows("t")
    second.push("t", make_lookup(keys, after), np.ones((400, 2), np.float32)).result()
    assert second.num_rows("t") == 400
    first.close()
    second.close()


def test_a_sketch_of_another_size_is_refused_and_the_table_stays_empty():
    table = SparseTable(2, admission=ADMISSION)
    for _ in range(ADMISSION.num):
        table.push([1], np.ones((1, 2)))
    assert len(table) == 1, "or there would be no row to come in"
    other = SparseTable(2, admission=AfterSightings(num=3, sketch_bytes=8192))
    with pytest.raises(ValueError, match=r"sketch of 4,096 bytes does not fit one of 8,192"):
        other.import_rows(table.export_rows(), 1, table.export_metadata())
    assert (len(other), other.num_pushes) == (0, 0)


def test_a_table_that_admits_all_takes_the_rest_of_the_metadata():
    table = SparseTable(2, admission=ADMISSION, eviction=Eviction(max_age=1))
    table.push([1], np.ones((1, 2)))
    other = SparseTable(2)
    other.import_rows(table.export_rows(), 1, table.export_metadata())
    assert other.counters() == (0, 0, {"age": 0, "uses": 0, "bytes": 0})
