"""The frontier as a file for a document: an SVG picture alone, or an HTML page with the table below it."""

from __future__ import annotations

from pathlib import Path

from heterps.errors import ConfigError
from heterps.planning.frontier import Frontier
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import plural, rate, short, usd
from heterps.report.page.charts import Chart, draw, draw_svg
from heterps.report.page.templates import render, write_text
from heterps.report.terminal.frontier_view import chosen_for, meaning
from heterps.report.terminal.plan_table import hours

SVG_STYLE = "svg { font-family: system-ui, sans-serif; max-width: 60rem; }"


def check_plot(path: Path) -> None:
    """Raises ConfigError unless the file name ends in a format that can be drawn."""
    if path.suffix not in (".svg", ".html"):
        raise ConfigError(f"--plot {path}: a plot is an .svg or an .html file. Name it so.")


def write_plot(path: Path, frontier: Frontier, profile: Profile, floor: float) -> None:
    """Writes the plot in the format of the file name. Raises ConfigError, and StorageError when it cannot be written.

    `floor` is the throughput that was asked for, in samples a second.
    """
    check_plot(path)
    chart = Chart(
        "Cost against throughput",
        [(plan.throughput, plan.usd) for plan in frontier.plans],
        usd,
        tick=lambda value: f"{short(value)} USD",
        from_zero=True,
        x_name="samples/s",
        x_from=min(floor, frontier.plans[0].throughput),
        steps=True,
        mark=floor,
        mark_name="asked",
    )
    if path.suffix == ".svg":
        write_text(path, draw_svg(chart, style=render("style.css") + SVG_STYLE) + "\n", "plot")
        return
    asked = chosen_for(frontier.plans, floor)
    guessed = {name for plan in frontier.plans for name in plan.estimated}
    page = render(
        "frontier.html.j2",
        model=profile.model,
        meaning=meaning(frontier, floor),
        chart=draw(chart),
        rows=[
            (f"{rate(plan.throughput)}{' ✓' if plan is asked else ''}", usd(plan.usd), hours(plan.hours), _units(plan))
            for plan in frontier.plans
        ],
        estimated=", ".join(name for name in profile.resources if name in guessed),
    )
    write_text(path, page, "plot")


def _units(plan: Plan) -> str:
    """The units of the stages in order, then the servers: `4 cpu, 1 v100, 1 cpu; 3 servers`."""
    stages = ", ".join(f"{stage.count} {stage.resource}" for stage in plan.stages)
    return f"{stages}; {plural(plan.servers.count, 'server')}" if plan.servers.count else stages
