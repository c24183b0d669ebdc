"""What a server has done and holds: counters, rates and latencies, as `heterps server stats` shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from heterps.ps.shard.counts import ServerCounts
from heterps.ps.shard.shard import Shard
from heterps.ps.table.sparse import SparseTable
from heterps.ps.table.tiers import TieredTable


class TableStats(Struct):
    """Figures of a server's shard of a table."""

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
    free_bytes: int | None = None  # where its rows on disk are; None: not known


class MirrorStats(Struct):
    """How near the mirror of a server is to what the server has done."""

    name: str
    is_synced: bool  # it has all that the server has said to be done
    requests: int  # that changed something, sent to it since it is the mirror of this server, parts of a copy included
    behind: int  # of these, those that it has not taken yet
    behind_bytes: int
    behind_s: float  # seconds since it took the last one, or was sent more; 0 where it has all


class ServerStats(Struct):
    """All figures of a server at one moment."""

    server: str
    shard: int
    num_shards: int
    epoch: int
    incarnation: int
    workers: int
    requests: int
    repeats: int  # pushes that were answered again and not applied again
    held: int  # requests that wait for an older push or for the end of a round, now
    kept: int  # contributions to rounds whose other parts have not come, now
    waits_for: list[str]  # servers from which rows or values are still to come: until then it takes no requests
    dropped: dict[str, int]  # messages that were refused or not understood, by reason
    rows_per_s: float  # pulled and pushed, over the last interval
    latency_s: dict[str, float]  # of a message inside the server: p50, p90, p99, p99.9
    tables: dict[str, TableStats]
    received_bytes: int = 0  # of all messages
    sent_bytes: int = 0
    updates: float = 0.0  # of tables, without repeats; one of p parts of a round is 1/p of an update
    rounds: int = 0  # that are over
    silence_s: dict[str, float] = {}  # by worker: seconds since its last request
    up_s: float = 0.0  # seconds since it began to serve
    served_s: float = 0.0  # seconds that all messages took
    mirror: MirrorStats | None = None  # where the server has one
    octaves: list[int] = []  # messages that took at most 1, 2, 4, ... microseconds, and last how many there were


def counted(counts: ServerCounts, now: float) -> dict[str, Any]:
    """Return the fields of ServerStats that a server counts as it works."""
    return {
        "requests": counts.requests,
        "repeats": counts.repeats,
        "dropped": dict(counts.dropped),
        "latency_s": {f"p{percent:g}": counts.latency.percentile(percent) for percent in (50, 90, 99, 99.9)},
        "received_bytes": counts.received_bytes,
        "sent_bytes": counts.sent_bytes,
        "served_s": counts.latency.total_s,
        "octaves": counts.latency.octaves(),
        "updates": counts.updates,
        "up_s": now - (counts.began_at or now),
    }


def table_stats(shard: Shard, counts: ServerCounts) -> dict[str, TableStats]:
    """Return every table of a shard, with what `counts` has counted of it."""
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
    return TierStats(*sizes, c.num_promotions, c.num_demotions, c.hit_rate, table.free_bytes)


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
