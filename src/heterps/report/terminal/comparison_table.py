"""Every method beside every other: what its plan costs, how far from the optimum, how long it searched, its stages.

  method     USD samples/s   gap  seconds evals stages                           servers
✓ exact     0.32 2,367,681  0.0%     0.00     9 ccccvvvvvvvvvvvvvvvvvvvvvvvcccc   cpu×3
                                                4   1                      1
"""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from heterps.planning.api import Comparison, Option
from heterps.profiling.profile import Profile
from heterps.report.figures import short
from heterps.report.terminal.plan_table import ESTIMATED, show_verdict, usd
from heterps.report.terminal.stage_bar import ResourceKeys, StageBar, make_keys
from heterps.report.terminal.tables import plain_table


def show_every_method(console: Console, comparison: Comparison, profile: Profile, throughput: float) -> None:
    """Prints one row per method with the chosen one ticked, the legend of the bars, and what was chosen and why."""
    plans = [option.plan for option in comparison.options if option.plan]
    keys = make_keys(profile.resources)
    console.print(_table(comparison, keys))
    console.print(keys.legend(stage.resource for plan in plans for stage in plan.stages))
    for reason, methods in _reasons(comparison).items():
        console.print(f"{', '.join(methods)}: {reason}", style="dim", markup=False)
    show_verdict(console, comparison, profile, throughput)


def _reasons(comparison: Comparison) -> dict[str, list[str]]:
    """The methods without a plan, by the reason for it."""
    found: dict[str, list[str]] = {}
    for option in comparison.options:
        if option.plan is None:
            found.setdefault(option.reason, []).append(option.method)
    return found


def _table(comparison: Comparison, keys: ResourceKeys) -> Table:
    table = plain_table()
    table.add_column("", width=1)
    table.add_column("method", no_wrap=True)
    for name in ("USD", "samples/s", "gap", "seconds", "evals"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("stages")
    table.add_column("servers", no_wrap=True)
    for option in comparison.options:
        is_chosen = option.method == comparison.chosen.method
        table.add_row(*_row(option, keys, is_chosen), style="bold" if is_chosen else "")
    return table


def _row(option: Option, keys: ResourceKeys, is_chosen: bool) -> tuple[RenderableType, ...]:
    tick = Text("✓", style="green") if is_chosen else ""
    plan = option.plan
    if plan is None:
        return tick, option.method, *["-"] * 5, Text("no plan: see below", style="dim"), "-"
    mark = ESTIMATED if plan.estimated else ""
    return (
        tick,
        option.method,
        f"{mark}{usd(plan.usd)}",
        f"{mark}{plan.throughput:,.0f}",
        "?" if plan.gap is None else f"{plan.gap:.1%}",
        f"{plan.search_s:.2f}",
        short(plan.evaluations) if plan.evaluations < 1000 else short(float(f"{plan.evaluations:.3g}")),
        StageBar(plan, keys),
        f"{plan.servers.resource}×{plan.servers.count}" if plan.servers.count else "none",
    )
