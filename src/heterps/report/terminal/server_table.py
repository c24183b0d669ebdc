"""The statistics of a server as a table on the console."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from heterps.ps.server.stats import ServerStats
from heterps.report.figures import plural
from heterps.report.terminal.profile_table import size
from heterps.report.terminal.tables import plain_table


def server_table(stats: ServerStats) -> RenderableType:
    """A line about the server, one row per table, and what was refused or repeated."""
    place = f"shard {stats.shard} of {stats.num_shards}" if stats.shard >= 0 else "no shard: it has left the job"
    head = f"{stats.server}  {place}, epoch {stats.epoch}, {plural(stats.workers, 'worker')}"
    times = ", ".join(f"{name} {seconds * 1000:.2f} ms" for name, seconds in stats.latency_s.items())
    table = plain_table()
    table.add_column("table")
    for name in ("rows", "bytes", "pulls", "pushes", "rows pulled", "rows pushed", "evicted", "refused"):
        table.add_column(name, justify="right")
    for name, shard in stats.tables.items():
        traffic = (shard.pulls, shard.pushes, shard.rows_pulled, shard.rows_pushed)
        figures = (*traffic, shard.evicted, shard.refused)
        table.add_row(Text(name), _count(shard.rows), size(shard.bytes), *map(_count, figures))
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in stats.dropped.items()) or "nothing"
    lines = [
        f"{stats.requests:,} requests, {stats.rows_per_s:,.0f} rows/s, latency {times}",
        f"{stats.repeats:,} repeated pushes not applied again, {stats.held:,} requests held; refused: {dropped}",
    ]
    if (mirror := stats.mirror) is not None:
        lacks = "has all" if mirror.is_synced and not mirror.behind else f"lacks {mirror.behind:,} of"
        lines.append(f"mirror {mirror.name} {lacks} {mirror.requests:,} requests that changed something")
    if stats.kept:
        lines.append(f"{plural(stats.kept, 'contribution')} kept for rounds whose other parts have not come")
    if stats.waits_for:
        lines.append(f"takes no requests until all has come that moves to it from {', '.join(stats.waits_for)}")
    tiers = [_tiers_table(stats)] if any(shard.tiers for shard in stats.tables.values()) else []
    return Group(Text(head), table, *tiers, Text("\n".join(lines)))


def _tiers_table(stats: ServerStats) -> RenderableType:
    """How many rows of tables with tiers are in memory and on disk."""
    table = plain_table()
    table.add_column("table")
    for name in ("in memory", "bytes", "on disk", "bytes", "promoted", "demoted", "hits"):
        table.add_column(name, justify="right")
    for name, shard in stats.tables.items():
        if (tiers := shard.tiers) is not None:
            sizes = _count(tiers.memory_rows), size(tiers.memory_bytes), _count(tiers.disk_rows), size(tiers.disk_bytes)
            figures = [*sizes, _count(tiers.promotions), _count(tiers.demotions)]
            table.add_row(Text(name), *figures, "-" if tiers.hit_rate is None else f"{tiers.hit_rate:.1%}")
    return table


def _count(number: int) -> str:
    """A count that fits nine columns on a screen: in full up to 99,999, then 100k, 13.9M."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= max(unit, 100_000):
            return f"{number / unit:.3g}{name}"
    return f"{number:,}"
