"""Policies compared by what a job learns with each, as a page: the advice, the chart over simulated time, the table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from math import isfinite
from pathlib import Path

from heterps.report.figures import plural
from heterps.report.lines import STYLE, Line, draw_lines
from heterps.report.page.simulation import html_page, write_text
from heterps.report.terminal.tables import html_table
from heterps.report.terminal.virtual_table import cells, heads, meaning
from heterps.sim.compare import Comparison
from heterps.sim.course import Point, VirtualRun
from heterps.sim.scenario import Scenario

MOST_SPEEDS = 6


def write_virtual_page(
    path: Path,
    name: str,
    scenario: Scenario,
    runs: Sequence[VirtualRun],
    comparison: Comparison,
    advice: Sequence[str],
) -> None:
    write_text(path, render_virtual_page(name, scenario, runs, comparison, advice), "page")


def render_virtual_page(
    name: str, scenario: Scenario, runs: Sequence[VirtualRun], comparison: Comparison, advice: Sequence[str]
) -> str:
    """One self-contained page."""
    measure, target = comparison.measure, comparison.target
    seeds = sorted({run.seed for run in runs})
    about = (
        f"{plural(len(scenario.workers), 'worker')} on a simulated clock, with real gradients. Seconds an iteration: "
        f"{_speeds(scenario)}. {plural(len(seeds), 'seed')} from {seeds[0]}."
    )
    title = f"{measure[:1].upper()}{measure[1:]}"
    charts = [
        draw_lines(
            title, _lines(runs, "quality"), x_name="simulated seconds", level=target,
            level_name=f"target {target:.4g}",
        ),
        draw_lines("Log loss", _lines(runs, "log_loss"), x_name="simulated seconds"),
    ]  # fmt: skip
    rows = [cells(row, comparison) for row in comparison.rows]
    body = [
        f'<header><p class="kind">heterps simulate</p><h1>{escape(name)}: {_policies(len(rows))}</h1>'
        f"<p>{escape(about)}</p></header>",
        "<section><h2>Advice</h2>" + "".join(f"<p>{escape(sentence)}</p>" for sentence in advice) + "</section>",
        f'<section><h2>Over simulated time</h2>{charts[0]}<div style="margin-top:1rem">{charts[1]}</div>'
        f'<p class="note">On the test set{_mean(len(seeds))}. Rest the pointer on a line to read a value.</p>'
        "</section>",
        f"<section><h2>Policies</h2>{html_table(heads(comparison), rows)}"
        f'<p class="note">{escape(meaning(comparison))} Rounds of BSP apply the mean of their gradients, unless '
        "summed; other policies apply each gradient with the whole learning rate.</p></section>",
    ]
    return html_page(f"{name}: policies", STYLE, body)


def _lines(runs: Sequence[VirtualRun], field: str) -> list[Line]:
    """A line a policy: the mean over its seeds at each evaluation, which all make after the same samples."""
    labels = dict.fromkeys(run.variant.label for run in runs)
    return [Line(label, _means([run for run in runs if run.variant.label == label], field)) for label in labels]


def _means(runs: Sequence[VirtualRun], field: str) -> list[tuple[float, float, str]]:
    places = []
    for points in zip_longest(*(run.points for run in runs)):
        known: list[Point] = [point for point in points if point and isfinite(getattr(point, field))]
        if known:
            values = [getattr(point, field) for point in known]
            now_s, value = statistics.fmean(point.now_s for point in known), statistics.fmean(values)
            told = f"{value:.4f} at {now_s:,.1f} s, {known[0].samples:,} samples"
            if len(known) > 1:
                told += f" ({min(values):.4f} to {max(values):.4f} over {len(known)} seeds)"
            places.append((now_s, value, told))
    return places


def _speeds(scenario: Scenario) -> str:
    """As a command line has them: 4x1, 2.5."""
    counts = Counter(scenario.workers)
    if len(counts) > MOST_SPEEDS:
        return f"{min(counts):g} to {max(counts):g}"
    return ", ".join(f"{count}x{seconds:g}" if count > 1 else f"{seconds:g}" for seconds, count in counts.items())


def _policies(count: int) -> str:
    return "1 policy" if count == 1 else f"{count} policies compared"


def _mean(num_seeds: int) -> str:
    return "" if num_seeds == 1 else "; the mean over the seeds, whose range is in the tooltips"
