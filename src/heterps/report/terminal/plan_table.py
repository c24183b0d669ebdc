"""The table of options on the console: every method's plan, a tick at the chosen one, and why it is as it is.

  method   stages                           servers  samples/s   hours     USD     gap
✓ exact      cpu×1  [embedding..concat]     cpu×1       81,025     3.4    9.67       0
           → v100×1 [fc1..fc4]
"""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heterps.planning.api import Comparison, Option
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.names import Ranges
from heterps.report.terminal.tables import plain_table

ESTIMATED = "~"


def show_comparison(console: Console, comparison: Comparison, profile: Profile, throughput: float) -> None:
    """Prints the options, then what was chosen and why; `throughput` is the floor that was asked for."""
    console.print(_table(comparison, profile))
    show_verdict(console, comparison, profile, throughput)


def show_verdict(console: Console, comparison: Comparison, profile: Profile, throughput: float) -> None:
    """Prints what was chosen, how good that is, and which figures are estimates."""
    chosen = comparison.chosen
    verdict = Text.assemble(
        ("✓ ", "bold green"),
        (f"{chosen.method}: {usd(chosen.usd)} USD", "bold"),
        f" in {hours(chosen.hours)} hours at {chosen.throughput:,.0f} samples/s ({throughput:,.0f} asked).",
    )
    console.print(verdict)
    console.print(Padding(Text(f"{_standing(chosen)}. Bottleneck: {chosen.bottleneck}."), (0, 0, 0, 2), expand=False))
    guessed = {name for option in comparison.options if option.plan for name in option.plan.estimated}
    if guessed:
        names = ", ".join(name for name in profile.resources if name in guessed)
        console.print(
            f"{ESTIMATED} rests on estimated costs of {names}, not on measured ones.", style="dim", markup=False
        )


def draw_stages(plan: Plan, profile: Profile, *, servers: bool = False) -> Ranges:
    """One line per stage: cpu×12 [embedding..concat], with an arrow to the next; and the servers, if asked for."""
    lines = []
    for stage in plan.stages:
        first, last = profile.layers[stage.first].name, profile.layers[stage.last].name
        layers = first if stage.first == stage.last else f"{first}..{last}"
        lines.append(f"{stage.resource}×{stage.count} [{layers}]")
    ending = [f"servers: {plan.servers.resource}×{plan.servers.count}"] if servers and plan.servers.count else []
    return Ranges(lines[0], *(f"→ {line}" for line in lines[1:]), *ending)


def draw_units(plan: Plan) -> str:
    """The units of the stages in short: cpu×12 → v100×1."""
    return " → ".join(f"{stage.resource}×{stage.count}" for stage in plan.stages)


def usd(value: float) -> str:
    """An amount in USD without its unit: cents, or two significant digits below ten cents."""
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def hours(value: float) -> str:
    """Hours with one decimal, or two significant digits below ten."""
    return f"{value:,.1f}" if value >= 10 or value == 0 else f"{value:.2g}"


def _table(comparison: Comparison, profile: Profile) -> Table:
    table = plain_table()
    table.add_column("", width=1)
    table.add_column("method", no_wrap=True)
    table.add_column("stages", overflow="fold")
    table.add_column("servers", no_wrap=True)
    for name in ("samples/s", "hours", "USD", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    for option in comparison.options:
        is_chosen = option.method == comparison.chosen.method
        table.add_row(*_row(option, profile, is_chosen), style="bold" if is_chosen else "")
    return table


def _row(option: Option, profile: Profile, is_chosen: bool) -> tuple[RenderableType, ...]:
    tick = Text("✓", style="green") if is_chosen else ""
    plan = option.plan
    if plan is None:
        return tick, option.method, Text(option.reason.partition(". ")[0], style="dim"), "-", "-", "-", "-", "-"
    mark = ESTIMATED if plan.estimated else ""
    return (
        tick,
        option.method,
        draw_stages(plan, profile),
        f"{plan.servers.resource}×{plan.servers.count}" if plan.servers.count else "none",
        f"{mark}{plan.throughput:,.0f}",
        f"{mark}{hours(plan.hours)}",
        f"{mark}{usd(plan.usd)}",
        "?" if plan.gap is None else f"{plan.gap:.1%}",
    )


def _standing(plan: Plan) -> str:
    if plan.gap is None:
        if not plan.bound_usd:
            return "The optimum is not known"
        return f"The optimum is not known, but no plan costs less than {usd(plan.bound_usd)} USD"
    return (
        "Proven optimal" if plan.gap == 0 else f"{plan.gap:.1%} above the optimum of {usd(plan.optimal_usd or 0.0)} USD"
    )
