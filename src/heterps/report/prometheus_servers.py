"""What Prometheus is told of a parameter server: what it holds, how much it does, how fast, and who is silent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from heterps.ps.server.stats import ServerStats
from heterps.report.exposition import text_of

__all__ = ["NAMES", "ServerFacts", "exposition"]

Kind = type[Gauge] | type[Counter]


@dataclass(frozen=True)
class ServerFacts:
    """A server as monitoring sees it.

    octaves      messages that took at most some number of seconds, by growing seconds up to infinity
    total_s      seconds that all messages took
    up_s         seconds since it was started
    turn_age_s   seconds since the server did not work on a message: these figures are so old
    free_bytes   by table with rows on disk: bytes that are free there
    """

    stats: ServerStats
    octaves: Sequence[tuple[float, int]]
    total_s: float
    up_s: float
    turn_age_s: float
    free_bytes: Mapping[str, int]


OF_SERVERS: dict[str, tuple[str, Kind, str]] = {
    "heterps_server_shards": ("num_shards", Gauge, "Servers of the job, by the roster of this one."),
    "heterps_server_epoch": ("epoch", Gauge, "Epoch of the roster: it grows when servers come or go."),
    "heterps_server_workers": ("workers", Gauge, "Workers that have greeted the server."),
    "heterps_server_requests": ("requests", Counter, "Requests that came, repeats included."),
    "heterps_server_repeats": ("repeats", Counter, "Pushes that were repeated, and not applied again."),
    "heterps_server_updates": ("updates", Counter, "Updates of tables."),
    "heterps_server_rounds": ("rounds", Counter, "Rounds that are over."),
    "heterps_server_received_bytes": ("received_bytes", Counter, "Bytes of messages that came."),
    "heterps_server_sent_bytes": ("sent_bytes", Counter, "Bytes of messages that were sent."),
    "heterps_server_held_requests": ("held", Gauge, "Requests that wait for an older push or for the end of a round."),
    "heterps_server_kept_contributions": (
        "kept",
        Gauge,
        "Contributions to rounds whose other parts have not come.",
    ),
}
"""Field of ServerStats, kind and meaning, by the name of the metric. Prometheus adds `_total` to counters."""
OF_TABLES: dict[str, tuple[str, Kind, str]] = {
    "heterps_server_table_rows": ("rows", Gauge, "Rows of a table; values of a dense one."),
    "heterps_server_table_bytes": ("bytes", Gauge, "Bytes of memory of a table."),
    "heterps_server_table_pulls": ("pulls", Counter, "Pulls from a table."),
    "heterps_server_table_pushes": ("pushes", Counter, "Pushes to a table."),
    "heterps_server_table_rows_pulled": ("rows_pulled", Counter, "Rows that were pulled."),
    "heterps_server_table_rows_pushed": ("rows_pushed", Counter, "Rows that were pushed."),
    "heterps_server_table_evicted": ("evicted", Counter, "Rows that were evicted."),
    "heterps_server_table_refused": ("refused", Counter, "Gradients of keys that were not admitted."),
}
OF_TIERS: dict[str, tuple[str, Kind, str]] = {
    "heterps_server_table_disk_rows": ("disk_rows", Gauge, "Rows of a table that are on disk."),
    "heterps_server_table_disk_bytes": ("disk_bytes", Gauge, "Bytes of disk of a table."),
    "heterps_server_table_promotions": ("promotions", Counter, "Rows that went from disk to memory."),
    "heterps_server_table_demotions": ("demotions", Counter, "Rows that went from memory to disk."),
}
UP = "heterps_server_up_seconds"
TURN = "heterps_server_turn_age_seconds"
SILENCE = "heterps_server_worker_silence_seconds"
DROPPED = "heterps_server_dropped"
MESSAGES = "heterps_server_message_seconds"
WAITS_FOR = "heterps_server_waits_for_servers"
FREE = "heterps_server_disk_free_bytes"


def _name(name: str, kind: Kind) -> str:
    return f"{name}_total" if kind is Counter else name


NAMES = (
    UP,
    TURN,
    SILENCE,
    f"{DROPPED}_total",
    f"{MESSAGES}_bucket",
    WAITS_FOR,
    FREE,
    *(_name(name, kind) for each in (OF_SERVERS, OF_TABLES, OF_TIERS) for name, (_, kind, _) in each.items()),
)
"""All names, for dashboards to be checked against."""


def exposition(facts: ServerFacts) -> bytes:
    """Return the text that Prometheus reads."""
    return text_of(_Families(facts).all())


class _Families:
    """The families of figures of one server."""

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts

    def all(self) -> Iterator[Metric]:
        facts, stats = self._facts, self._facts.stats
        yield self._family(Gauge, UP, "Seconds since the server was started.", facts.up_s)
        yield self._family(Gauge, TURN, "Seconds since the server was between two messages.", facts.turn_age_s)
        yield self._family(Gauge, WAITS_FOR, "Servers from which rows are still to come.", len(stats.waits_for))
        for name, (field, kind, meaning) in OF_SERVERS.items():
            yield self._family(kind, name, meaning, getattr(stats, field))
        yield self._by("worker", Gauge, SILENCE, "Seconds since the last request of a worker.", stats.silence_s)
        yield self._by("reason", Counter, DROPPED, "Messages that were not taken, by reason.", stats.dropped)
        yield self._message_seconds()
        for name, (field, kind, meaning) in OF_TABLES.items():
            values = {table: getattr(shard, field) for table, shard in stats.tables.items()}
            yield self._by("table", kind, name, meaning, values)
        for name, (field, kind, meaning) in OF_TIERS.items():
            values = {table: getattr(shard.tiers, field) for table, shard in stats.tables.items() if shard.tiers}
            yield self._by("table", kind, name, meaning, values)
        yield self._by("table", Gauge, FREE, "Bytes that are free where a table has rows on disk.", facts.free_bytes)

    def _family(self, kind: Kind, name: str, meaning: str, value: float) -> Metric:
        family = kind(name, meaning, labels=["server"])
        family.add_metric([self._facts.stats.server], value)
        return family

    def _by(self, label: str, kind: Kind, name: str, meaning: str, values: Mapping[str, float]) -> Metric:
        """A family with one value for each worker, table or reason."""
        family = kind(name, meaning, labels=["server", label])
        for key, value in values.items():
            family.add_metric([self._facts.stats.server, key], value)
        return family

    def _message_seconds(self) -> Metric:
        family = HistogramMetricFamily(MESSAGES, "Seconds that a message took inside the server.", labels=["server"])
        buckets = [("+Inf" if math.isinf(seconds) else f"{seconds:g}", num) for seconds, num in self._facts.octaves]
        family.add_metric([self._facts.stats.server], buckets, self._facts.total_s)
        return family
