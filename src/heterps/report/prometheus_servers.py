"""What Prometheus is told of a parameter server: what it holds, how much it does, how fast, and who is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from heterps.ps.server.stats import ServerStats
from heterps.ps.shard.counts import LEAST_S

Kind = type[Gauge] | type[Counter]


@dataclass(frozen=True)
class ServerFacts:
    """A server as monitoring sees it.

    turn_age_s   seconds since the server did not work on a message: these figures are so old
    run          whose server it is; "" where the server itself tells
    """

    stats: ServerStats
    turn_age_s: float = 0.0
    run: str = ""


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
    "heterps_server_disk_free_bytes": ("free_bytes", Gauge, "Bytes that are free where a table has rows on disk."),
}
OF_MIRRORS: dict[str, tuple[str, Kind, str]] = {
    "heterps_server_mirror_synced": ("is_synced", Gauge, "1 if the mirror has all that its server has done, else 0."),
    "heterps_server_mirror_requests": ("requests", Counter, "Requests that were sent to the mirror, with its copy."),
    "heterps_server_mirror_behind_requests": ("behind", Gauge, "Requests that the mirror has not taken yet."),
    "heterps_server_mirror_behind_bytes": ("behind_bytes", Gauge, "Bytes that the mirror has not taken yet."),
    "heterps_server_mirror_behind_seconds": (
        "behind_s",
        Gauge,
        "Seconds since the mirror took anything, while it lacks something.",
    ),
}
UP = "heterps_server_up_seconds"
TURN = "heterps_server_turn_age_seconds"
SILENCE = "heterps_server_worker_silence_seconds"
DROPPED = "heterps_server_dropped"
MESSAGES = "heterps_server_message_seconds"
WAITS_FOR = "heterps_server_waits_for_servers"
LABELS = ["run", "server"]


def _name(name: str, kind: Kind) -> str:
    return f"{name}_total" if kind is Counter else name


NAMES = (
    UP,
    TURN,
    SILENCE,
    f"{DROPPED}_total",
    f"{MESSAGES}_bucket",
    WAITS_FOR,
    *(_name(name, kind) for name, (_, kind, _) in (OF_SERVERS | OF_TABLES | OF_TIERS | OF_MIRRORS).items()),
)
"""All names, for dashboards to be checked against."""


def server_families(servers: Sequence[ServerFacts]) -> Iterator[Metric]:
    """Yield the families of figures of servers; none without servers."""
    if not servers:
        return
    yield _family(Gauge, UP, "Seconds since the server was started.", servers, lambda stats: stats.up_s)
    ages = Gauge(TURN, "Seconds since the server was between two messages.", labels=LABELS)
    for facts in servers:
        ages.add_metric(_labels(facts), facts.turn_age_s)
    yield ages
    waits_for = "Servers from which rows are still to come."
    yield _family(Gauge, WAITS_FOR, waits_for, servers, lambda stats: len(stats.waits_for))
    for name, (field, kind, meaning) in OF_SERVERS.items():
        yield _family(kind, name, meaning, servers, attrgetter(field))
    silence = "Seconds since the last request of a worker."
    yield _by("worker", Gauge, SILENCE, silence, servers, lambda stats: stats.silence_s)
    dropped = "Messages that were not taken, by reason."
    yield _by("reason", Counter, DROPPED, dropped, servers, lambda stats: stats.dropped)
    yield _message_seconds(servers)
    for name, (field, kind, meaning) in OF_TABLES.items():
        yield _by("table", kind, name, meaning, servers, partial(_of_tables, field))
    for name, (field, kind, meaning) in OF_TIERS.items():
        yield _by("table", kind, name, meaning, servers, partial(_of_tiers, field))
    for name, (field, kind, meaning) in OF_MIRRORS.items():
        yield _by("mirror", kind, name, meaning, servers, partial(_of_mirror, field))


def _labels(facts: ServerFacts) -> list[str]:
    return [facts.run, facts.stats.server]


def _family(
    kind: Kind, name: str, meaning: str, servers: Sequence[ServerFacts], value: Callable[[ServerStats], float]
) -> Metric:
    family = kind(name, meaning, labels=LABELS)
    for facts in servers:
        family.add_metric(_labels(facts), value(facts.stats))
    return family


def _by(
    label: str,
    kind: Kind,
    name: str,
    meaning: str,
    servers: Sequence[ServerFacts],
    values: Callable[[ServerStats], Mapping[str, float | None]],
) -> Metric:
    """Return a family with one value for each worker, table or reason of each server, but for those not known."""
    family = kind(name, meaning, labels=[*LABELS, label])
    for facts in servers:
        for key, value in values(facts.stats).items():
            if value is not None:
                family.add_metric([*_labels(facts), key], value)
    return family


def _of_tables(field: str, stats: ServerStats) -> dict[str, float]:
    return {table: getattr(shard, field) for table, shard in stats.tables.items()}


def _of_tiers(field: str, stats: ServerStats) -> dict[str, float | None]:
    return {table: getattr(shard.tiers, field) for table, shard in stats.tables.items() if shard.tiers}


def _of_mirror(field: str, stats: ServerStats) -> dict[str, float]:
    return {stats.mirror.name: float(getattr(stats.mirror, field))} if stats.mirror else {}


def _message_seconds(servers: Sequence[ServerFacts]) -> Metric:
    family = HistogramMetricFamily(MESSAGES, "Seconds that a message took inside the server.", labels=LABELS)
    for facts in servers:
        *octaves, total = facts.stats.octaves
        buckets = [(f"{LEAST_S * 2.0**octave:g}", num) for octave, num in enumerate(octaves)]
        family.add_metric(_labels(facts), [*buckets, ("+Inf", total)], facts.stats.served_s)
    return family
