"""The frontier as a picture for a document: an SVG alone, or an HTML page with the table below it."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

from heterps.errors import ConfigError, StorageError
from heterps.planning.frontier import Frontier
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import plural, rate, short, usd
from heterps.report.page.charts import Chart, draw, draw_svg
from heterps.report.terminal.frontier_view import chosen_for, meaning
from heterps.report.terminal.plan_table import hours

FORMATS = (".svg", ".html")
SVG_STYLE = "svg { font-family: system-ui, sans-serif; max-width: 60rem; }"
TITLE = "Cost against throughput"


def check_plot(path: Path) -> None:
    """Raises ConfigError unless the name says a format that can be drawn."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot {path}: a plot is an .svg or an .html file. Name it so.")


def write_plot(path: Path, frontier: Frontier, profile: Profile, floor: float) -> None:
    """Writes the format that the name says. Raises ConfigError, and StorageError when the file cannot be written."""
    check_plot(path)
    text = render_svg(frontier, floor) if path.suffix == ".svg" else render_page(frontier, profile, floor)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot write the plot: {error.strerror}. Name another file.") from None


def render_svg(frontier: Frontier, floor: float) -> str:
    return draw_svg(_chart(frontier, floor), style=f"<style>{_style()}{SVG_STYLE}</style>") + "\n"


def render_page(frontier: Frontier, profile: Profile, floor: float) -> str:
    asked, model = chosen_for(frontier.plans, floor), profile.model
    guessed = {name for plan in frontier.plans for name in plan.estimated}
    names = ", ".join(name for name in profile.resources if name in guessed)
    note = f'<p class="note">Rests on estimated costs of {escape(names)}, not on measured ones.</p>' if names else ""
    rows = "".join(_row(plan, plan is asked) for plan in frontier.plans)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(model)}: cost against throughput</title>\n"
        f"<style>\n{_style()}</style>\n</head>\n<body>\n<main>\n"
        f'<header><p class="kind">heterps plan</p><h1>{escape(model)}</h1><p>{escape(meaning(frontier, floor))}</p>'
        f'</header>\n<section style="max-width:44rem">{draw(_chart(frontier, floor))}</section>\n'
        '<section><div class="scroll"><table><thead><tr><th scope="col">Samples/s</th><th scope="col">Cost</th>'
        f'<th scope="col">Hours</th><th scope="col">Units of the stages</th></tr></thead><tbody>{rows}</tbody></table>'
        f"</div>{note}</section>\n</main>\n</body>\n</html>\n"
    )


def _chart(frontier: Frontier, floor: float) -> Chart:
    return Chart(
        TITLE,
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


def _row(plan: Plan, is_asked: bool) -> str:
    cells = (usd(plan.usd), hours(plan.hours), _units(plan))
    tick = " ✓" if is_asked else ""
    return (
        f'<tr><th scope="row">{rate(plan.throughput)}{tick}</th>{"".join(f"<td>{escape(c)}</td>" for c in cells)}</tr>'
    )


def _units(plan: Plan) -> str:
    """Of the stages in order, then the servers: `4 cpu, 1 v100, 1 cpu; 3 servers`."""
    stages = ", ".join(f"{stage.count} {stage.resource}" for stage in plan.stages)
    return f"{stages}; {plural(plan.servers.count, 'server')}" if plan.servers.count else stages


def _style() -> str:
    return files("heterps.report.page").joinpath("run.css").read_text(encoding="utf-8")
