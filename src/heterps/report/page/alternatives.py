"""The frontier as a chart whose points are buttons: a group of radio buttons lies over the picture.

USD  |            ____◉    <- the button of a plan; the arrow keys go from each to the next
     |     ____○--'           the page shows the plan whose button is :checked, without a script
     |  ○-'
     +------------------ samples/s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from heterps.planning.plan import Plan
from heterps.report.figures import rate, usd
from heterps.report.page.charts import stairs
from heterps.report.page.panel import WIDE_PANEL, Panel, corners, place_ticks, tag, tick_labels, value_ticks

ROOM = 0.03
"""Room left of the first button, as a share of the axis."""


@dataclass(frozen=True)
class Alternatives:
    """The picture, and the button of each plan: its place in percent of the picture's size, and what it stands for."""

    picture: Markup
    buttons: tuple[Button, ...]


@dataclass(frozen=True)
class Button:
    left: float
    top: float
    told: str
    is_chosen: bool


def draw_alternatives(plans: Sequence[Plan], first: Plan, floor: float) -> Alternatives:
    """Draw the frontier, with the plan `first` chosen; `floor` is the throughput that was asked for."""
    ticks = value_ticks([plan.usd for plan in plans], 4, from_zero=True)
    positions = place_ticks([plan.throughput for plan in plans], floor)
    start, end = positions[0], positions[-1]
    room = ROOM * (end - start)  # so that no button lies on the labels of the axis
    panel = Panel((start - room, end), (ticks[0], ticks[-1]), *WIDE_PANEL)
    places = [(panel.across(plan.throughput), panel.down(plan.usd)) for plan in plans]
    picture = panel.svg(
        f"Cost in USD against throughput: {len(plans)} plans",
        *panel.levels(ticks, tick_labels(ticks)),
        *panel.positions("samples/s", ticks=positions),
        panel.mark(floor, "asked"),
        tag("polyline", class_="line", points=corners(stairs(places))),
    )
    buttons = [
        Button(
            100 * x / panel.width, 100 * y / panel.height, f"{rate(plan.throughput)} samples/s for {usd(plan.usd)}",
            is_chosen=plan is first,
        )
        for plan, (x, y) in zip(plans, places, strict=True)
    ]  # fmt: skip
    return Alternatives(picture, tuple(buttons))
