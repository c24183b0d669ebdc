"""A simulation as a picture for a document: the timelines as SVG, or an HTML page with the figures around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from heterps.errors import StorageError
from heterps.report.figures import plural
from heterps.report.page.timeline import STYLE, draw_timeline
from heterps.report.terminal.simulation_table import (
    MEANING,
    POLICY_HEADS,
    WORKER_HEADS,
    make_groups,
    outcome,
    policy_cells,
    share,
    staleness,
)
from heterps.report.terminal.tables import html_table
from heterps.sim.result import SimResult

SVG_STYLE = "svg { font-family: system-ui, sans-serif; max-width: 75rem; background: var(--card); }"
MOST_BINS, WIDEST_BIN = 40, 40
WIDTH, HEIGHT, LEFT, BOTTOM = 440, 170, 8, 34


def write_page(path: Path, results: Sequence[SimResult]) -> None:
    write_text(path, render_page(results), "page")


def write_svg(path: Path, result: SimResult) -> None:
    write_text(path, draw_timeline(result, style=f"<style>{_style()}{STYLE}{SVG_STYLE}</style>") + "\n", "picture")


def render_page(results: Sequence[SimResult]) -> str:
    """One self-contained page: the figures, then each policy's timeline, staleness and workers."""
    title = ", ".join(result.policy for result in results)
    body = [_headline(results), *([_comparison(results)] if len(results) > 1 else [])]
    body += [_policy(result) for result in results]
    return html_page(title, STYLE, body)


def html_page(title: str, style: str, body: Iterable[str]) -> str:
    """A page of `heterps simulate`: the sheet of all pages, `style` beside it, and the parts of the body."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}: heterps simulate</title>\n<style>\n{_style()}{style}</style>\n"
        "</head>\n<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _headline(results: Sequence[SimResult]) -> str:
    first = results[0]
    about = f"{plural(len(first.workers), 'worker')} on a simulated clock, seed {first.seed}."
    title = f"{len(results)} policies compared" if len(results) > 1 else first.policy
    head = f'<header><p class="kind">heterps simulate</p><h1>{escape(title)}</h1><p>{escape(about)}</p></header>'
    if len(results) > 1:
        return head
    tiles = [
        ("Pushes", f"{first.pushes:,}", f"{first.pushes_per_s:,.4g} a second, {first.end_s:,.6g} s in all"),
        ("Waiting", share(first.wait_s, first.present_s), f"{plural(first.waits, 'wait')}, {first.wait_s:,.1f} s"),
        ("Largest lead", f"{first.max_lead:,}", "iterations ahead of the slowest, at the start of one"),
        ("Mean staleness", staleness(first), "updates of others between pull and push"),
    ]
    cells = "".join(
        f'<div class="tile"><h3>{escape(name)}</h3><strong>{escape(value)}</strong><p>{escape(note)}</p></div>'
        for name, value, note in tiles
    )
    return f'{head}\n<div class="tiles">{cells}</div>'


def _comparison(results: Sequence[SimResult]) -> str:
    dropped = any(result.dropped for result in results)
    rows = [(*policy_cells(r), *([f"{r.dropped:,}"] if dropped else [])) for r in results]
    heads = (*POLICY_HEADS, "dropped") if dropped else POLICY_HEADS
    note = f'<p class="note">{escape(MEANING)}</p>'
    return f"<section><h2>Policies</h2>{html_table(heads, rows)}{note}</section>"


def _policy(result: SimResult) -> str:
    workers = html_table(WORKER_HEADS, [group.cells() for group in make_groups(result.workers, 64)])
    return (
        f"<section><h2>{escape(result.policy)}</h2><p>{escape(outcome(result))}</p>"
        f'<figure><figcaption>Timeline</figcaption><div class="scroll">{draw_timeline(result)}</div></figure>'
        f'<figure style="margin-top:1rem;max-width:30rem"><figcaption>Staleness of gradients</figcaption>'
        f"{draw_histogram(result)}</figure>"
        f"<details><summary>Workers</summary>{workers}</details></section>"
    )


def draw_histogram(result: SimResult) -> str:
    """How many gradients had which staleness: a bar each, or a bar for a range of them where there are many."""
    if not result.staleness:
        return '<p class="empty">Nobody pushed.</p>'
    size = max(1, -(-(max(result.staleness) + 1) // MOST_BINS))
    bins = [0] * (max(result.staleness) // size + 1)
    for value, count in result.staleness.items():
        bins[value // size] += count
    step, top, floor = min((WIDTH - 2 * LEFT) / len(bins), WIDEST_BIN), max(bins), HEIGHT - BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"staleness of {result.policy}")}">']
    for i, count in enumerate(bins):
        name = f"{i}" if size == 1 else f"{i * size} to {(i + 1) * size - 1}"
        tall = (floor - 8) * count / top
        parts.append(
            f'<rect class="compute" x="{LEFT + i * step:.1f}" y="{floor - tall:.1f}" width="{step:.1f}" '
            f'height="{tall:.1f}"><title>{name}: {count:,} gradients</title></rect>'
        )
        if i % max(1, len(bins) // 8) == 0:
            x = LEFT + (i + 0.5) * step
            parts.append(f'<text x="{x:.1f}" y="{floor + 15}" text-anchor="middle">{i * size}</text>')
    parts.append(f'<text x="{WIDTH - LEFT}" y="{HEIGHT - 4}" text-anchor="end">updates of others</text></svg>')
    return "".join(parts)


def write_text(path: Path, text: str, what: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot write the {what}: {error.strerror}. Name another file.") from None


def _style() -> str:
    return files("heterps.report.page").joinpath("run.css").read_text(encoding="utf-8")
