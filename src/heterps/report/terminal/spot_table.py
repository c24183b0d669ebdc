"""What a plan takes and costs over traces of spot capacity, on the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console

from heterps.planning.plan import Plan
from heterps.report.figures import duration
from heterps.report.terminal.plan_table import hours, usd
from heterps.report.terminal.tables import figures_table
from heterps.sim.spot import SpotRun

LOW, HIGH = 0.05, 0.95
ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("hours", "hours", hours),
    ("USD", "usd", usd),
    ("interruptions", "interruptions", lambda value: f"{value:,.3g}"),
    ("spot units taken back", "units_taken", lambda value: f"{value:,.3g}"),
    ("lost by interruptions", "lost_s", duration),
    ("  in samples", "lost_samples", lambda value: f"{value:,.0f}"),
    ("waited for units", "waited_s", duration),
    ("on demand instead, h", "replaced_hours", hours),
)


def spread(runs: Sequence[SpotRun]) -> dict[str, dict[str, float]]:
    """Return the mean of each figure, and what 5 % and 95 % of the runs stay below."""
    values: dict[str, Any] = {name: [asdict(run)[name] for run in runs] for name in asdict(runs[0])}
    return {
        "mean": {name: float(np.mean(each)) for name, each in values.items()},
        "low": {name: float(np.quantile(each, LOW)) for name, each in values.items()},
        "high": {name: float(np.quantile(each, HIGH)) for name, each in values.items()},
    }


def show_spot(console: Console, plan: Plan, runs: Sequence[SpotRun]) -> None:
    """Print predicted and played figures side by side, with their spread where there are several runs."""
    found = spread(runs)
    predicted = {"hours": plan.hours, "usd": plan.usd}
    several = len(runs) > 1
    rows = []
    for label, name, words in ROWS:
        told = words(predicted[name]) if name in predicted else "-"
        played = [words(found[part][name]) for part in (("mean", "low", "high") if several else ("mean",))]
        rows.append((label, told, *played))
    heads = ("", "predicted", *(("mean", "5 %", "95 %") if several else ("played",)))
    console.print(figures_table(heads, rows))
    over = found["mean"]["usd"] / plan.usd - 1 if plan.usd else 0.0
    traces = f"{len(runs):,} traces" if several else "the trace"
    console.print(f"Over {traces} the plan costs {abs(over):.1%} {'more' if over >= 0 else 'less'} than predicted.")
