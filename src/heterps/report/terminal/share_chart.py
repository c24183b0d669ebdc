"""What a stage spent its time on, over the run, as stacked bars in SVG: no script, a tooltip on every part.

100 % |::::::::::::|::::::|     wait: hollow
      |████████████|██████|     communicate: dark
      |############|######|     compute: filled         a bar an interval, as wide as its samples
      +------------------- samples
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from heterps.report.figures import short
from heterps.report.page.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, make_ticks
from heterps.report.stage_figures import DOINGS, percent

MOST_BARS = 120
STYLE = """
svg .compute { fill: var(--c0); } svg .communicate { fill: var(--ink); }
svg .wait { fill: var(--card); stroke: var(--rule); }
svg .share:hover { opacity: .7; }
.shares { display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; margin: 0 0 1rem; padding: 0; list-style: none; }
.shares .wait { stroke: var(--soft); stroke-width: 2; }
.shares svg { display: inline-block; width: 18px; height: 12px; margin-right: .5em; vertical-align: -1px; }
"""


@dataclass(frozen=True)
class Span:
    """An interval from sample `start` to `end`, and the shares of each doing; None where they are not known."""

    start: float
    end: float
    shares: tuple[float, ...] | None


def draw_shares(title: str, note: str, spans: Sequence[Span]) -> str:
    """The chart as a `<figure>` with its name; `note` stands beside it."""
    caption = f"<figcaption>{escape(title)}<strong>{escape(note)}</strong></figcaption>"
    if not any(span.shares for span in spans):
        return f'<figure>{caption}<p class="empty">No values were recorded.</p></figure>'
    end = spans[-1].end or 1.0
    label = escape(f"{title}: shares of compute, communicate and wait over {end:,.0f} samples")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">',
        *(bar for span in thin(spans) for bar in _bar(span, end)),
        *(_level(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)),
        *(
            f'<text x="{_across(tick, end):.1f}" y="{HEIGHT - 20}" text-anchor="middle">{short(tick)}</text>'
            for tick in make_ticks(0.0, end, 4)
            if tick <= end
        ),
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">samples</text></svg>',
    ]
    return f"<figure>{caption}{''.join(parts)}</figure>"


def share_legend() -> str:
    keys = "".join(
        f'<li><svg viewBox="0 0 18 12" aria-hidden="true"><rect class="{doing}" width="18" height="12"/></svg>'
        f"{doing}</li>"
        for doing in DOINGS
    )
    return f'<ul class="shares">{keys}</ul>'


def thin(spans: Sequence[Span]) -> list[Span]:
    """About MOST_BARS at most: neighbours as one, with the mean of their shares by samples."""
    size = math.ceil(len(spans) / MOST_BARS)
    if size <= 1:
        return list(spans)
    thinned = []
    for first in range(0, len(spans), size):
        some = spans[first : first + size]
        known = [(span.end - span.start, span.shares) for span in some if span.shares]
        weight = sum(samples for samples, _ in known)
        means = (
            tuple(sum(n * shares[i] for n, shares in known) / weight for i in range(len(DOINGS))) if weight else None
        )
        thinned.append(Span(some[0].start, some[-1].end, means))
    return thinned


def _bar(span: Span, end: float) -> Iterator[str]:
    if span.shares is None:
        return
    left, right, floor = _across(span.start, end), _across(span.end, end), 0.0
    for doing, share in zip(DOINGS, span.shares, strict=True):
        y, foot = _down(floor + share), _down(floor)
        told = f"{doing} {percent(share)}, from {span.start:,.0f} to {span.end:,.0f} samples"
        yield (
            f'<rect class="share {doing}" x="{left:.1f}" y="{y:.1f}" width="{max(right - left - 0.5, 0.5):.1f}" '
            f'height="{foot - y:.1f}"><title>{escape(told)}</title></rect>'
        )
        floor += share


def _level(share: float) -> str:
    y = _down(share)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    )


def _across(samples: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * samples / end


def _down(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
