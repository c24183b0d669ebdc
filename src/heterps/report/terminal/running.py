"""A running job on the console: what its stages do, and how another plan compares with its own.

heterps status                                          heterps replan
stage     workers  samples/s  ...                               stages                servers  samples/s  hours   USD
1 cpu           3     12,040  ...                       runs    cpu×3 [embedding..fc] cpu×1       12,000    3.1  0.42
                                                      ✓ new     cpu×1 [embedding] → ...
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from heterps.planning.plan import Plan
from heterps.report.emulated import MARK, banner, is_emulated, seconds_word
from heterps.report.figures import duration, usd
from heterps.report.terminal.plan_table import hours
from heterps.report.terminal.plan_table import usd as plain_usd
from heterps.report.terminal.stage_table import stage_table
from heterps.report.terminal.tables import plain_table


def status_table(name: str, status: dict[str, Any]) -> RenderableType:
    """A line about the job, and one row per stage."""
    samples, total = status["samples"], status["total"]
    head = [
        f"{name}  {samples:,} of {total:,} samples ({samples / total if total else 1:.0%}), "
        f"{duration(status['seconds'])}{seconds_word(status)}, {usd(status['usd'])} so far"
    ]
    if status.get("usd_per_hour") is not None:
        head[0] += f" at {usd(status['usd_per_hour'])} an hour"
    if status.get("change"):
        head.append(f"changes: {status['change']}")
    if status.get("last_change"):
        head.append(f"last change: {status['last_change']}")
    parts: list[RenderableType] = [Text("\n".join(head))]
    if status.get("stages"):
        parts.append(stage_table(status["stages"]))
        parts.append(Text(f"staleness {status['staleness']:g} updates"))
    if is_emulated(status):
        parts.append(Text(f"{MARK}: {banner(status)}."))
    return Group(*parts)


def plans_table(old: Plan, new: Plan, *, is_chosen: bool) -> RenderableType:
    """The plan that runs and the new one, with a tick at the one that the job continues with."""
    table = plain_table()
    table.add_column("", width=1)
    table.add_column("plan", no_wrap=True)
    table.add_column("stages", overflow="fold")
    table.add_column("servers", no_wrap=True)
    for name in ("samples/s", "hours", "USD"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, plan, chosen in (("runs", old, not is_chosen), ("new", new, is_chosen)):
        names = plan.layers or old.layers or range(plan.stages[-1].last + 1)
        stages = " → ".join(
            f"{s.resource}×{s.count} [{names[s.first]}{f'..{names[s.last]}' if s.last > s.first else ''}]"
            for s in plan.stages
        )
        servers = f"{plan.servers.resource}×{plan.servers.count}" if plan.servers.count else "none"
        figures = (f"{plan.throughput:,.0f}", hours(plan.hours), plain_usd(plan.usd))
        shown = figures if plan.is_predicted else ("-", "-", "-")
        style = "bold" if chosen else ""
        table.add_row(Text("✓", style="green") if chosen else "", name, Text(stages), servers, *shown, style=style)
    return table
