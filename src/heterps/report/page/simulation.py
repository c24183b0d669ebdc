"""A simulation as a file for a document: the timeline as an SVG picture, or an HTML page with all figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from heterps.report.figures import plural
from heterps.report.page.charts import draw_histogram
from heterps.report.page.panel import tag
from heterps.report.page.templates import render, write_text
from heterps.report.page.timeline import MOST_BARS, draw_timeline, zoomable_timeline
from heterps.report.terminal.simulation_table import (
    MEANING,
    WORKER_HEADS,
    make_groups,
    outcome,
    policy_table,
    share,
    staleness,
)
from heterps.sim.result import SimResult

SVG_STYLE = "svg { font-family: system-ui, sans-serif; max-width: 75rem; background: var(--card); }"


def write_page(path: Path, results: Sequence[SimResult]) -> None:
    """Writes the page of one or several policies. Raises StorageError when the file cannot be written."""
    write_text(path, render_page(results), "page")


def write_svg(path: Path, result: SimResult) -> None:
    """Writes the timeline as a picture. Raises StorageError when the file cannot be written."""
    write_text(path, draw_timeline(result, style=render("style.css") + SVG_STYLE) + "\n", "picture")


def render_page(results: Sequence[SimResult]) -> str:
    """A page in one file: the figures, then each policy's timeline, staleness and workers."""
    first = results[0]
    heads, rows = policy_table(results)
    return render(
        "simulation.html.j2",
        results=results,
        figures=[
            ("Pushes", f"{first.pushes:,}", f"{first.pushes_per_s:,.4g} a second, {first.end_s:,.6g} s in all"),
            ("Waiting", share(first.wait_s, first.present_s), f"{plural(first.waits, 'wait')}, {first.wait_s:,.1f} s"),
            ("Largest lead", f"{first.max_lead:,}", "iterations ahead of the slowest, at the start of one"),
            ("Mean staleness", staleness(first), "updates of others between pull and push"),
        ],
        policy_heads=heads,
        policy_rows=rows,
        meaning=MEANING,
        outcome=outcome,
        draw_timeline=lambda result, number: zoomable_timeline(
            _title(result), result, f"zoom-{number}", most_bars=MOST_BARS // len(results)
        ),
        draw_staleness=draw_staleness,
        worker_heads=WORKER_HEADS,
        worker_rows=lambda result: [group.cells() for group in make_groups(result.workers, 64)],
    )


def _title(result: SimResult) -> str:
    """What the timeline shows, and of how much: `--window` says which part."""
    first, last = result.window or (0.0, result.end_s)
    is_all = first <= 0.0 and last >= result.end_s
    return "Timeline" if is_all else f"Timeline from {first:,.4g} to {last:,.4g} s, of {result.end_s:,.6g} s"


def draw_staleness(result: SimResult) -> Markup:
    """How many gradients had which staleness, as an SVG."""
    if not result.staleness:
        return tag("p", "Nobody pushed.", class_="empty")
    return draw_histogram(f"staleness of {result.policy}", result.staleness, "updates of others", "gradients")
