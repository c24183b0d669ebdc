"""The frontier as a file for a document: an SVG picture alone, or an HTML page with the table below it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heterps.errors import ConfigError
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import plural, rate, usd
from heterps.report.page.charts import Chart, draw, draw_svg
from heterps.report.page.layer_chain import planned_chain
from heterps.report.page.templates import render, write_text
from heterps.report.terminal.frontier_view import chosen_for, meaning
from heterps.report.terminal.plan_table import hours

if TYPE_CHECKING:  # their kernels take a while to load
    from heterps.planning.api import Option, PlanComparison
    from heterps.planning.frontier import Frontier

SVG_STYLE = "svg { font-family: system-ui, sans-serif; max-width: 60rem; }"


def check_plot(path: Path) -> None:
    """Raises ConfigError unless the file name ends in a format that can be drawn."""
    if path.suffix not in (".svg", ".html"):
        raise ConfigError(f"--plot {path}: a plot is an .svg or an .html file. Name it so.")


Spot = tuple[float, float, str]  # a plan or a run: samples a second, USD, name


def frontier_chart(frontier: Frontier, floor: float, spots: Sequence[Spot] = (), floor_name: str = "asked") -> Chart:
    """The chart of cost against throughput, with other plans or runs as `spots`. `floor` is a throughput to mark."""
    return Chart(
        "Cost in USD against throughput",
        [(plan.throughput, plan.usd) for plan in frontier.plans],
        usd,
        from_zero=True,
        x_name="samples/s",
        x_from=None,
        steps=True,
        mark=floor,
        mark_name=floor_name,
        spots=spots,
        is_wide=True,
    )


def _spots(options: Sequence[Option]) -> list[Spot]:
    """The plans of the methods; those of the same cost and throughput are one spot with all their names."""
    names: dict[tuple[str, str], list[str]] = {}
    plans = [(option.plan, option.method) for option in options if option.plan is not None]
    for plan, method in plans:
        names.setdefault((f"{plan.throughput:.4g}", f"{plan.usd:.4g}"), []).append(method)
    return [(float(throughput), float(cost), ", ".join(some)) for (throughput, cost), some in names.items()]


def write_plot(
    path: Path, frontier: Frontier, profile: Profile, floor: float, compared: PlanComparison | None = None
) -> None:
    """Writes the plot in the format of the file name. Raises ConfigError, and StorageError when it cannot be written.

    `floor` is the throughput that was asked for, in samples a second. `compared` are the plans of all methods, which
    are drawn beside the frontier.
    """
    check_plot(path)
    options = compared.options if compared is not None else ()
    chart = frontier_chart(frontier, floor, _spots(options))
    if path.suffix == ".svg":
        write_text(path, draw_svg(chart, style=render("style.css") + SVG_STYLE) + "\n", "plot")
        return
    asked = chosen_for(frontier.plans, floor)
    chosen = compared.chosen if compared is not None else asked
    guessed = {name for plan in frontier.plans for name in plan.estimated}
    page = render(
        "frontier.html.j2",
        model=profile.model,
        meaning=meaning(frontier, floor),
        chart=draw(chart),
        chain=planned_chain(chosen, profile) if chosen is not None else None,
        batch_size=profile.batch_size,
        rows=[
            (f"{rate(plan.throughput)}{' ✓' if plan is asked else ''}", usd(plan.usd), hours(plan.hours), _units(plan))
            for plan in frontier.plans
        ],
        options=[_option(option, chosen) for option in options],
        estimated=", ".join(name for name in profile.resources if name in guessed),
    )
    write_text(path, page, "plot")


def _option(option: Option, chosen: Plan | None) -> tuple[str, ...]:
    plan = option.plan
    if plan is None:
        return option.method, "–", "–", "–", option.reason
    name = f"{option.method}{' ✓' if chosen is not None and plan.method == chosen.method else ''}"
    return name, rate(plan.throughput), usd(plan.usd), hours(plan.hours), _units(plan)


def _units(plan: Plan) -> str:
    """The units of the stages in order, then the servers: `4 cpu, 1 v100, 1 cpu; 3 servers`."""
    stages = ", ".join(f"{stage.count} {stage.resource}" for stage in plan.stages)
    return f"{stages}; {plural(plan.servers.count, 'server')}" if plan.servers.count else stages
