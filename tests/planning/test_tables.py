"""The tables of a job fit into the memory of servers: the largest shard, its rows in memory and those on disk."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.config import Adagrad, Cluster
from heterps.planning.real import Conditions
from heterps.planning.tables import (
    COLD_BYTES,
    ROW_BYTES,
    TOO_MANY,
    disk_usd_per_hour,
    least_servers,
    shard_bytes,
    table_bytes,
)
from heterps.profiling.profile import Cost, LayerProfile, Profile, TableGrowth
from heterps.profiling.servers import INDEX_BYTES
from heterps.ps.keys.placement import NUM_SLOTS, largest_share, shard_numbers
from heterps.ps.table.sparse import SparseTable

COST = Cost(compute_s=1.0, sync_s=0.0, input_s=0.0, alpha=1.0, beta=1.0)


def profile_of(rows: int = 0, row_bytes: int = ROW_BYTES, dense_bytes: int = 0) -> Profile:
    """A profile of a model whose table has so many rows, however many samples it is trained on."""
    layer = LayerProfile(name="rows", kind="embedding", server_s=0.1, dense_bytes=dense_bytes, costs={"cpu": COST})
    growth = TableGrowth(name="rows", row_bytes=row_bytes, coefficient=rows, exponent=0.0)
    return Profile(version=2, model="given", batch_size=10, layers=(layer,), tables=(growth,) if rows else None)


def cluster_of(memory: float, **facts: object) -> Cluster:
    cpu = {"usd_per_hour": 1, "limit": 9, "memory_gb": memory / 1e9, **facts}
    return Cluster.model_validate({"resources": {"cpu": cpu}, "server_resource": "cpu"})


@pytest.mark.parametrize("num_servers", [1, 2, 3, 7, 100, 300])
@pytest.mark.parametrize("seed", range(3))
def test_no_server_gets_more_rows_than_the_largest_shard_has_room_for(num_servers: int, seed: int) -> None:
    rows = 50_000
    keys = np.random.default_rng(seed).integers(0, 2**64, rows, np.uint64)
    most = np.bincount(shard_numbers(keys, num_servers)).max()
    held = shard_bytes(profile_of(rows), 1.0, Conditions(), num_servers)
    assert most * ROW_BYTES <= held.memory
    assert held.memory <= 1.3 * most * ROW_BYTES, "and not far more"


def test_the_largest_share_falls_with_the_number_of_shards() -> None:
    numbers = [*range(1, 200), *range(200, 2000, 97), *range(2000, NUM_SLOTS + 1, 997)]
    shares = [largest_share(n) for n in numbers]
    assert shares == sorted(shares, reverse=True)
    assert all(share >= 1 / n for share, n in zip(shares, numbers, strict=True))


def test_a_table_takes_no_more_memory_than_is_planned_for_its_rows_at_any_size() -> None:
    table = SparseTable(8, Adagrad(lr=0.1), seed=0)
    per_row = table.row_bytes + INDEX_BYTES
    keys = np.random.default_rng(0).integers(0, 2**64, 40_000, np.uint64)
    for first in range(0, len(keys), 100):
        table.pull(keys[first : first + 100])
        assert table.num_bytes <= max(len(table), 250) * per_row


@pytest.mark.parametrize("rows", [10_000, 3_000_000])
@pytest.mark.parametrize("dense_bytes", [0, 10**8])
@pytest.mark.parametrize("conditions", [Conditions(), Conditions(rows_in_memory=0.3), Conditions(tiers_bytes=10**8)])
def test_the_least_servers_hold_everything_and_one_fewer_do_not(
    rows: int, dense_bytes: int, conditions: Conditions
) -> None:
    profile = profile_of(rows, dense_bytes=dense_bytes)
    whole = table_bytes(profile, 1.0, conditions).memory
    for part in (1.01, 0.99, 0.3, 0.011):
        cluster = cluster_of(whole * part, disk_gb=0.2)
        num = least_servers(profile, cluster, 1.0, conditions)
        enough = shard_bytes(profile, 1.0, conditions, num)
        assert enough.memory <= whole * part
        assert enough.disk <= 0.2e9
        if num > 1:
            short = shard_bytes(profile, 1.0, conditions, num - 1)
            assert short.memory > whole * part or short.disk > 0.2e9


def test_tiers_bound_the_rows_in_memory_and_the_others_are_on_disks_that_are_paid() -> None:
    rows, bound = 1_000_000, 50_000_000
    profile, tiers = profile_of(rows, dense_bytes=10**7), Conditions(tiers_bytes=bound)
    held = shard_bytes(profile, 1.0, tiers, 1)
    assert held.rows == pytest.approx(bound)
    hot = (bound - rows * COLD_BYTES) / (ROW_BYTES - COLD_BYTES)
    assert held.disk == pytest.approx((rows - hot) * ROW_BYTES)
    assert (held.weights, held.memory) == (3e7, held.weights + held.rows)
    assert least_servers(profile, cluster_of(8e7), 1.0, tiers) == 1
    paid = cluster_of(8e7, disk_usd_per_gb_hour=2.0)
    assert disk_usd_per_hour(profile, paid, 1.0, tiers) == pytest.approx(held.disk / 1e9 * 2)
    assert shard_bytes(profile, 1.0, tiers, 4).disk == 0.0, "four servers have room for all rows"
    assert least_servers(profile, cluster_of(1e12), 1.0, Conditions(tiers_bytes=1_000_000)) > 12, "for the index"


def test_what_no_number_of_servers_holds_takes_more_than_there_can_be() -> None:
    assert least_servers(profile_of(10**12), cluster_of(1e9), 1.0, Conditions()) == TOO_MANY > NUM_SLOTS
