"""A running job on the console, for `heterps status`: how far it is, and what its stages do."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from heterps.report.emulated import MARK, banner, is_emulated, seconds_word
from heterps.report.figures import duration, usd
from heterps.report.terminal.stage_table import stage_table


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
    if status.get("alarm"):
        head.append(f"warning: {status['alarm']}")
    parts: list[RenderableType] = [Text("\n".join(head))]
    if status.get("stages"):
        parts.append(stage_table(status["stages"]))
        parts.append(Text(f"staleness {status['staleness']:g} updates"))
    if is_emulated(status):
        parts.append(Text(f"{MARK}: {banner(status)}."))
    return Group(*parts)
