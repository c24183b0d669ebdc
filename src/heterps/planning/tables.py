"""How many servers hold the tables of a job, in memory and on disks.

rows expected, by the data or --rows      keys are dealt to servers by a hash, so shards are not equally large:
  |                                       [1] the largest has its share of the slots (ps/keys/placement.py),
  v                                       [2] and by chance some keys more
largest shard  = its part of the weights
               + its rows in memory, which tiers bound, and the index of those on disk    <= memory of a unit
                 its rows on disk                                                         <= disk of a unit
"""

from __future__ import annotations

import math
from typing import NamedTuple

from heterps.config import Cluster
from heterps.planning.real import GB, OF_OPTIMIZER, Conditions, dense_bytes, memory_bytes, served_s
from heterps.profiling.profile import Profile
from heterps.ps.keys.placement import NUM_SLOTS, largest_share

ROW_BYTES = 160
"""Bytes of a row on a server if the profile does not say: 16 values, as many of the optimizer, and the index."""
COLD_BYTES = 12.5
"""Bytes of memory, at most, by which a server finds a row on its disk (docs/how-to/tiers.md)."""
TOO_MANY = 1 << 40
"""A number of servers that no cluster has: there are no more than NUM_SLOTS."""
BY_CHANCE = 5.0
"""Standard deviations of the number of keys in a shard for which there is room, also in the worst of hundreds."""


class HeldBytes(NamedTuple):
    """Bytes that a server holds at the end of a job, or all of them together."""

    weights: float
    rows: float  # in memory, with the index of those on disk
    disk: float

    @property
    def memory(self) -> float:
        return self.weights + self.rows


def table_bytes(profile: Profile, samples: float, conditions: Conditions, *, expected: bool = False) -> HeldBytes:
    """Bytes of the rows that are asked for, or of those after `samples` by the profile, and of weights, in all servers.

    By the profile that is the most rows that its growth allows for (`TableGrowth.most_rows`), so that servers do not
    run out; or those that are `expected`.
    """
    rows, row_bytes = _rows(profile, samples, conditions, expected=expected)
    return _held(_weights(profile, conditions), rows, row_bytes, conditions)


def shard_bytes(profile: Profile, samples: float, conditions: Conditions, num_servers: int) -> HeldBytes:
    """Bytes that the largest of `num_servers` shards holds in the end."""
    rows, row_bytes = _rows(profile, samples, conditions)
    share = largest_share(min(num_servers, NUM_SLOTS))
    largest = rows * share + BY_CHANCE * math.sqrt(rows * share * (1 - share))  # [1] [2]
    return _held(_weights(profile, conditions) / num_servers, largest, row_bytes, conditions)


def _weights(profile: Profile, conditions: Conditions) -> float:
    """Bytes of weights on all servers, with what optimizers keep of them."""
    return 0.0 if conditions.all_reduce else (1 + OF_OPTIMIZER) * sum(map(dense_bytes, profile.layers))


def _rows(profile: Profile, samples: float, conditions: Conditions, *, expected: bool = False) -> tuple[float, float]:
    """Number of rows in the end, and bytes of one."""
    tables = profile.tables or ()
    if conditions.rows is not None:
        return conditions.rows, float(max((table.row_bytes for table in tables), default=ROW_BYTES))
    numbers = [table.rows(samples) if expected else table.most_rows(samples) for table in tables]
    rows = math.fsum(numbers)
    of_rows = math.fsum(n * table.row_bytes for n, table in zip(numbers, tables, strict=True))
    return rows, of_rows / rows if rows else 0.0


def _held(weights: float, rows: float, row_bytes: float, conditions: Conditions) -> HeldBytes:
    """Bytes of a shard of so many rows: those that its memory has no room for are on disk."""
    hot = rows
    if conditions.rows_in_memory is not None:
        hot = rows * conditions.rows_in_memory
    elif conditions.tiers_bytes is not None and rows * row_bytes > conditions.tiers_bytes:
        hot = max((conditions.tiers_bytes - rows * COLD_BYTES) / max(row_bytes - COLD_BYTES, 1.0), 0.0)
    return HeldBytes(weights, hot * row_bytes + (rows - hot) * COLD_BYTES, (rows - hot) * row_bytes)


def least_servers(profile: Profile, cluster: Cluster, samples: float, conditions: Conditions) -> int:
    """Smallest number of server units that hold the tables after `samples` samples, each in its memory and on its disk.

    TOO_MANY where no number of them does.
    """
    memory, disk = memory_bytes(cluster, cluster.server_resource), disk_bytes(cluster)
    of_rows = math.inf if conditions.rows_in_memory is not None else conditions.tiers_bytes or math.inf

    def fit(num_servers: int) -> bool:
        held = shard_bytes(profile, samples, conditions, num_servers)
        return held.memory <= memory and held.disk <= disk and held.rows <= of_rows * (1 + 1e-9)

    if fit(1):  # before the slots of several are counted, which takes a moment
        return 1
    if not fit(NUM_SLOTS):
        return TOO_MANY
    too_few, enough = 1, NUM_SLOTS
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fit(middle) else (middle, enough)
    return enough


def disk_bytes(cluster: Cluster) -> float:
    """Bytes of the disk of a server unit; infinite if nothing is said of it."""
    disk_gb = cluster.resources[cluster.server_resource].disk_gb
    return math.inf if disk_gb is None else disk_gb * GB


def disk_usd_per_hour(profile: Profile, cluster: Cluster, samples: float, conditions: Conditions) -> float:
    """USD per hour of the disks for the rows that servers do not keep in memory; 0 without servers.

    With tiers these are the most: more servers than are needed keep more rows in memory.
    """
    price = cluster.resources[cluster.server_resource].disk_usd_per_gb_hour
    if not price or not any(served_s(layer, conditions) > 0 for layer in profile.layers):
        return 0.0
    rows, row_bytes = _rows(profile, samples, conditions)
    num_servers = least_servers(profile, cluster, samples, conditions)
    return num_servers * _held(0.0, rows / num_servers, row_bytes, conditions).disk / GB * price
