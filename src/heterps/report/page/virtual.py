"""Policies compared by what a job learns with each, as a page: the advice, the chart over simulated time, the table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from math import isfinite

from heterps.report.page.charts import Series, draw_lines
from heterps.report.page.templates import render
from heterps.report.terminal.virtual_table import cells, heads, meaning
from heterps.sim.compare import VariantComparison
from heterps.sim.course import Point, VirtualRun
from heterps.sim.scenario import Scenario

MOST_SPEEDS = 6


def render_virtual_page(
    name: str, scenario: Scenario, runs: Sequence[VirtualRun], comparison: VariantComparison, advice: Sequence[str]
) -> str:
    """A page in one file: the advice, the charts over simulated time, and the table of policies."""
    measure, target, x_name = comparison.measure, comparison.target, "simulated seconds"
    title = f"{measure[:1].upper()}{measure[1:]}"
    return render(
        "virtual.html.j2",
        name=name,
        num_workers=len(scenario.workers),
        speeds=_speeds(scenario),
        seeds={run.seed for run in runs},
        advice=advice,
        quality=draw_lines(
            title, _series(runs, "quality"), x_name=x_name, level=target, level_name=f"target {target:.4g}"
        ),
        loss=draw_lines("Loss", _series(runs, "loss"), x_name=x_name),
        heads=heads(comparison),
        rows=[cells(row, comparison) for row in comparison.rows],
        meaning=meaning(comparison),
    )


def _series(runs: Sequence[VirtualRun], field: str) -> list[Series]:
    """One series per policy: the mean over its seeds at each evaluation, which all make after the same samples."""
    labels = dict.fromkeys(run.variant.label for run in runs)
    return [Series(label, _means([run for run in runs if run.variant.label == label], field)) for label in labels]


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
    """Seconds an iteration takes, as a command line has them: 4x1, 2.5."""
    counts = Counter(scenario.workers)
    if len(counts) > MOST_SPEEDS:
        return f"{min(counts):g} to {max(counts):g}"
    return ", ".join(f"{count}x{seconds:g}" if count > 1 else f"{seconds:g}" for seconds, count in counts.items())
