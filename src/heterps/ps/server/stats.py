"""What a server has done and holds: counters, rates and latencies, as `heterps server stats` shows them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from msgspec import Struct

from heterps.ps.server.shard import Shard
from heterps.ps.table.sparse import SparseTable
from heterps.ps.table.tiers import TieredTable

BUCKETS_PER_OCTAVE = 4
LEAST_S = 1e-6
NUM_BUCKETS = 26 * BUCKETS_PER_OCTAVE  # up to a minute


class Histogram:
    """Times in buckets whose borders are a factor 2**(1/4) apart: a percentile is at most 19 % above the truth."""

    def __init__(self) -> None:
        self._counts = [0] * (NUM_BUCKETS + 1)
        self.num = 0

    def add(self, seconds: float) -> None:
        octaves = math.log2(max(seconds, LEAST_S) / LEAST_S)
        self._counts[min(math.ceil(octaves * BUCKETS_PER_OCTAVE), NUM_BUCKETS)] += 1
        self.num += 1

    def percentile(self, percent: float) -> float:
        """An upper bound of the time that `percent` of all took at most; 0 without any."""
        wanted, seen = percent / 100 * self.num, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return float(LEAST_S * 2 ** (bucket / BUCKETS_PER_OCTAVE))
        return 0.0


class TableStats(Struct):
    """A table's shard."""

    rows: int  # in memory and on disk
    bytes: int  # of memory
    pulls: int
    pushes: int
    rows_pulled: int
    rows_pushed: int
    evicted: int = 0
    refused: int = 0  # gradients of keys that were not admitted
    tiers: TierStats | None = None  # where the table has some


class TierStats(Struct):
    """Rows of a table by tier; what has moved between them so far."""

    memory_rows: int
    disk_rows: int
    memory_bytes: int
    disk_bytes: int
    promotions: int
    demotions: int
    hit_rate: float | None  # of the rows that pulls and pushes used, the part that was in memory; none before the first


class ServerStats(Struct):
    """All of a server, at one moment."""

    server: str
    shard: int
    num_shards: int
    epoch: int
    incarnation: int
    workers: int
    requests: int
    repeats: int  # pushes that were answered again and not applied again
    held: int  # requests that wait for an older push, now
    kept: int  # contributions to rounds whose other parts have not come, now
    waits_for: list[str]  # servers from which rows or values are still to come: until then it takes no requests
    dropped: dict[str, int]  # messages that were refused or not understood, by reason
    rows_per_s: float  # pulled and pushed, over the last interval
    latency_s: dict[str, float]  # of a message inside the server: p50, p90, p99, p99.9
    tables: dict[str, TableStats]


@dataclass
class Traffic:
    """Pulls and pushes of a table."""

    pulls: int = 0
    pushes: int = 0
    rows_pulled: int = 0
    rows_pushed: int = 0


@dataclass
class Counts:
    """What a server counts."""

    requests: int = 0
    repeats: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Traffic] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    updates: float = 0.0  # of tables, without repeats; one of p parts of a round is 1/p of an update

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def traffic(self, table: str) -> tuple[int, int, int, int]:
        """Pulls, pushes, rows pulled and rows pushed of a table."""
        traffic = self.tables.get(table, Traffic())
        return traffic.pulls, traffic.pushes, traffic.rows_pulled, traffic.rows_pushed

    def pulled(self, table: str, num_rows: int) -> None:
        traffic = self.tables.setdefault(table, Traffic())
        traffic.pulls += 1
        traffic.rows_pulled += num_rows

    def pushed(self, table: str, num_rows: int, parts: int = 1) -> None:
        self.updates += 1 / parts
        traffic = self.tables.setdefault(table, Traffic())
        traffic.pushes += 1
        traffic.rows_pushed += num_rows

    @property
    def num_rows(self) -> int:
        return sum(traffic.rows_pulled + traffic.rows_pushed for traffic in self.tables.values())


def table_stats(shard: Shard, counts: Counts) -> dict[str, TableStats]:
    """Every table of a shard, with what `counts` has counted of it."""
    stats = {}
    for name, rows in shard.sparse.items():
        traffic, fate = counts.traffic(name), rows.counters()
        evicted = sum(fate.evicted.values())
        stats[name] = TableStats(len(rows), rows.num_bytes, *traffic, evicted, fate.refused, _tier_stats(rows))
    for name, dense in shard.dense.items():
        stats[name] = TableStats(dense.size, dense.num_bytes, *counts.traffic(name))
    return stats


def _tier_stats(table: SparseTable | TieredTable) -> TierStats | None:
    if isinstance(table, SparseTable):
        return None
    c = table.counts
    sizes = c.memory_rows, c.disk_rows, c.memory_bytes, c.disk_bytes
    return TierStats(*sizes, c.num_promotions, c.num_demotions, c.hit_rate)


@dataclass
class Rate:
    """Rows a second between the last two moments that were at least `interval_s` apart."""

    interval_s: float = 1.0
    per_s: float = 0.0
    _since: float | None = None
    _count: int = 0

    def update(self, count: int, now: float) -> None:
        if self._since is None:
            self._since, self._count = now, count
        elif now - self._since >= self.interval_s:
            self.per_s = (count - self._count) / (now - self._since)
            self._since, self._count = now, count
