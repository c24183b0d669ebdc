"""The statistics of a server as a table on the console."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from heterps.ps.stats import ServerStats
from heterps.report.tables import plain_table


def server_table(stats: ServerStats) -> RenderableType:
    """A line about the server, a row a table, and what was not taken as it came."""
    head = f"{stats.server}  shard {stats.shard} of {stats.num_shards}, epoch {stats.epoch}, {stats.workers} workers"
    times = ", ".join(f"{name} {seconds * 1000:.2f} ms" for name, seconds in stats.latency_s.items())
    table = plain_table()
    table.add_column("table")
    for name in ("rows", "bytes", "pulls", "pushes", "rows pulled", "rows pushed", "evicted"):
        table.add_column(name, justify="right")
    for name, shard in stats.tables.items():
        traffic = (shard.pulls, shard.pushes, shard.rows_pulled, shard.rows_pushed)
        figures = (shard.rows, shard.bytes, *traffic, shard.evicted)
        table.add_row(Text(name), *(f"{figure:,}" for figure in figures))
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in stats.dropped.items()) or "nothing"
    foot = (
        f"{stats.requests:,} requests, {stats.rows_per_s:,.0f} rows/s, latency {times}\n"
        f"{stats.repeats:,} repeated pushes not applied again, {stats.held:,} requests held; refused: {dropped}"
    )
    return Group(Text(head), table, Text(foot))
