"""Plans of several methods on the console: a tick at the chosen one, and why it is as it is.

show_comparison, with the layers of each stage:

  method   stages                           servers  samples/s   hours     USD     gap
✓ exact      cpu×1  [embedding..concat]     cpu×1       81,025     3.4    9.67       0
           → v100×1 [fc1..fc4]

show_every_method, with a bar of stages, and how long each method searched:

  method     USD samples/s   gap  seconds evals stages                           servers
✓ exact     0.32 2,367,681  0.0%     0.00     9 ccccvvvvvvvvvvvvvvvvvvvvvvvcccc   cpu×3
                                                4   1                      1

plans_table, for `heterps replan`: the plan that runs and the new one
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heterps.planning.api import PlanComparison
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import short
from heterps.report.names import Ranges
from heterps.report.terminal.stage_bar import StageBar, make_keys
from heterps.report.terminal.tables import add_figures, plain_table

ESTIMATED = "~"


def show_comparison(console: Console, comparison: PlanComparison, profile: Profile, throughput: float) -> None:
    """Prints the options, then what was chosen and why; `throughput` is the floor that was asked for."""
    table = _table("method")
    table.add_column("stages", overflow="fold")
    table.add_column("servers", no_wrap=True)
    add_figures(table, "samples/s", "hours", "USD", "gap")
    for option in comparison.options:
        cells: tuple[RenderableType, ...]
        if option.plan is None:
            cells = Text(option.reason.partition(". ")[0], style="dim"), "-", "-", "-", "-", "-"
        else:
            cells = draw_stages(option.plan, profile), servers(option.plan), *figures(option.plan), _gap(option.plan)
        add_option(table, option.method, *cells, is_chosen=option.method == comparison.chosen.method)
    console.print(table)
    show_verdict(console, comparison, profile, throughput)


def show_every_method(console: Console, comparison: PlanComparison, profile: Profile, throughput: float) -> None:
    """Prints one row per method with the chosen one ticked, the legend of the bars, and what was chosen and why."""
    keys = make_keys(profile.resources)
    table = _table("method")
    add_figures(table, "USD", "samples/s", "gap", "seconds", "evals")
    table.add_column("stages")
    table.add_column("servers", no_wrap=True)
    reasons: dict[str, list[str]] = {}
    for option in comparison.options:
        plan = option.plan
        cells: list[RenderableType]
        if plan is None:
            reasons.setdefault(option.reason, []).append(option.method)
            cells = [*["-"] * 5, Text("no plan: see below", style="dim"), "-"]
        else:
            samples, _, cost = figures(plan)
            evals = short(plan.evaluations) if plan.evaluations < 1000 else short(float(f"{plan.evaluations:.3g}"))
            cells = [cost, samples, _gap(plan), f"{plan.search_s:.2f}", evals, StageBar(plan, keys), servers(plan)]
        add_option(table, option.method, *cells, is_chosen=option.method == comparison.chosen.method)
    console.print(table)
    console.print(
        keys.legend(stage.resource for option in comparison.options if option.plan for stage in option.plan.stages)
    )
    for reason, methods in reasons.items():
        console.print(f"{', '.join(methods)}: {reason}", style="dim", markup=False)
    show_verdict(console, comparison, profile, throughput)


def plans_table(old: Plan, new: Plan, *, is_chosen: bool) -> Table:
    """The plan that runs and the new one, with a tick at the one that the job continues with."""
    table = _table("plan")
    table.add_column("stages", overflow="fold")
    table.add_column("servers", no_wrap=True)
    add_figures(table, "samples/s", "hours", "USD")
    for name, plan, chosen in (("runs", old, not is_chosen), ("new", new, is_chosen)):
        layers = plan.layers or old.layers or [str(layer) for layer in range(plan.stages[-1].last + 1)]
        stages = Text(" → ".join(_stage_lines(plan, layers)))
        predicted = f"{plan.throughput:,.0f}", hours(plan.hours), usd(plan.usd)
        shown = predicted if plan.is_predicted else ("-", "-", "-")
        add_option(table, name, stages, servers(plan), *shown, is_chosen=chosen)
    return table


def show_verdict(console: Console, comparison: PlanComparison, profile: Profile, throughput: float) -> None:
    """Prints what was chosen, how good that is, and which figures are estimates."""
    chosen = comparison.chosen
    verdict = Text.assemble(
        ("✓ ", "bold green"),
        (f"{chosen.method}: {usd(chosen.usd)} USD", "bold"),
        f" in {hours(chosen.hours)} hours at {chosen.throughput:,.0f} samples/s ({throughput:,.0f} asked).",
    )
    console.print(verdict)
    console.print(Padding(Text(f"{standing(chosen)}. Bottleneck: {chosen.bottleneck}."), (0, 0, 0, 2), expand=False))
    guessed = {name for option in comparison.options if option.plan for name in option.plan.estimated}
    if guessed:
        names = ", ".join(name for name in profile.resources if name in guessed)
        console.print(
            f"{ESTIMATED} rests on estimated costs of {names}, not on measured ones.", style="dim", markup=False
        )


def draw_stages(plan: Plan, profile: Profile, *, with_servers: bool = False) -> Ranges:
    """One line per stage: cpu×12 [embedding..concat], with an arrow to the next; and the servers, if asked for."""
    first, *others = _stage_lines(plan, [layer.name for layer in profile.layers])
    ending = [f"servers: {servers(plan)}"] if with_servers and plan.servers.count else []
    return Ranges(first, *(f"→ {line}" for line in others), *ending)


def _stage_lines(plan: Plan, layers: Sequence[str]) -> list[str]:
    return [
        f"{s.resource}×{s.count} [{layers[s.first]}{f'..{layers[s.last]}' if s.last > s.first else ''}]"
        for s in plan.stages
    ]


def draw_units(plan: Plan) -> str:
    """The units of the stages in short: cpu×12 → v100×1."""
    return " → ".join(f"{stage.resource}×{stage.count}" for stage in plan.stages)


def usd(value: float) -> str:
    """An amount in USD without its unit: cents, or two significant digits below ten cents."""
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def hours(value: float) -> str:
    """Hours with one decimal, or two significant digits below ten."""
    return f"{value:,.1f}" if value >= 10 or value == 0 else f"{value:.2g}"


def figures(plan: Plan) -> tuple[str, str, str]:
    """Samples a second, hours and USD of a plan, marked where they rest on estimates."""
    mark = ESTIMATED if plan.estimated else ""
    return f"{mark}{plan.throughput:,.0f}", f"{mark}{hours(plan.hours)}", f"{mark}{usd(plan.usd)}"


def servers(plan: Plan) -> str:
    """The servers of a plan: cpu×3, or none."""
    return f"{plan.servers.resource}×{plan.servers.count}" if plan.servers.count else "none"


def add_option(table: Table, *cells: RenderableType, is_chosen: bool) -> None:
    """Adds a row to choose from, with a tick before it and in bold where it is chosen."""
    table.add_row(Text("✓", style="green") if is_chosen else "", *cells, style="bold" if is_chosen else "")


def _gap(plan: Plan) -> str:
    return "?" if plan.gap is None else f"{plan.gap:.1%}"


def _table(name: str) -> Table:
    table = plain_table()
    table.add_column("", width=1)
    table.add_column(name, no_wrap=True)
    return table


def standing(plan: Plan) -> str:
    """How far a plan is from the cheapest, in words."""
    if plan.gap is None:
        if not plan.bound_usd:
            return "The optimum is not known"
        return f"The optimum is not known, but no plan costs less than {usd(plan.bound_usd)} USD"
    return (
        "Proven optimal" if plan.gap == 0 else f"{plan.gap:.1%} above the optimum of {usd(plan.optimal_usd or 0.0)} USD"
    )
