"""What all charts share: SVG elements, the panel with its axes and grid, captions and legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from heterps.report.figures import short

WIDTH, HEIGHT = 440, 206
"""Size of a small chart, in pixels."""
WIDE_PANEL = 720, 300, 72, 20, 14, 40
"""Width, height and margins of a chart as wide as a page."""
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 8, 38
"""Margins of a small chart, in pixels."""
HALF_LETTER = 4
"""Half of the width of a letter or a digit of a label, in pixels, at most."""
VOID = ("input",)
"""Elements without content, which have no end tag in HTML."""
LEAST_SPAN = 1e-4
"""Places on an x axis that differ by less than this part of them get room: their labels would be the same."""
TINY = 1e-300
"""Differences below this have no tick that a float could hold."""


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """An element of SVG or HTML: text is escaped, floats get one decimal, and `stroke_width` becomes stroke-width."""
    fields = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(f"{value:.1f}" if isinstance(value, float) else value)}"'
        for key, value in attributes.items()
    )
    if name in VOID:
        return Markup(f"<{name}{fields}>")  # its fields are escaped
    return Markup(f"<{name}{fields}>{''.join(map(escape, children))}</{name}>")  # both parts are escaped


EMPTY = tag("p", "No values were recorded.", class_="empty")


@dataclass(frozen=True)
class Panel:
    """The frame of a chart: the range of values on each axis, the size and the margins in pixels."""

    x: tuple[float, float]
    y: tuple[float, float] = (0.0, 1.0)
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM

    def across(self, x: float) -> float:
        """Pixels from the left edge to the value `x`."""
        return self.left + (self.width - self.left - self.right) * (x - self.x[0]) / (self.x[1] - self.x[0])

    def down(self, y: float) -> float:
        """Pixels from the upper edge to the value `y`."""
        floor = self.height - self.bottom
        return floor - (floor - self.top) * (y - self.y[0]) / (self.y[1] - self.y[0])

    def level(self, kind: str, y: float) -> Markup:
        """A horizontal line at the value `y`."""
        return tag("line", class_=kind, x1=self.left, x2=self.width - self.right, y1=self.down(y), y2=self.down(y))

    def upright(self, kind: str, x: float) -> Markup:
        """A vertical line at the value `x`."""
        return tag("line", class_=kind, x1=self.across(x), x2=self.across(x), y1=self.top, y2=self.height - self.bottom)

    def mark(self, x: float, name: str) -> Markup:
        """A vertical line with a name at the value `x`; an arrow at the left edge where that is left of the panel."""
        if x < self.x[0]:
            return self.text(self.left + 5, self.top + 10, f"\N{LEFTWARDS ARROW} {name}", "start")
        is_left = self.across(x) < self.width / 2
        side, anchor = (5, "start") if is_left else (-5, "end")
        return self.upright("reference", x) + self.text(self.across(x) + side, self.top + 10, name, anchor)

    def text(self, x: float, y: float, words: str, anchor: str = "middle") -> Markup:
        """Words at a place in pixels; `anchor` says which part of them stands at `x`: start, middle or end."""
        return tag("text", words, x=x, y=y, text_anchor=anchor)

    def levels(self, ticks: Sequence[float], labels: Sequence[str]) -> Iterator[Markup]:
        """The grid lines of the value axis, with their labels."""
        for tick, label in zip(ticks, labels, strict=True):
            yield self.level("grid", tick)
            yield self.text(self.left - 8, self.down(tick) + 4, label, "end")

    def positions(
        self, name: str, wanted: int = 4, *, has_lines: bool = False, ticks: Sequence[float] | None = None
    ) -> Iterator[Markup]:
        """The labels of the x axis and its name, with grid lines if `has_lines`; at `ticks`, or about `wanted`."""
        for tick in make_ticks(*self.x, wanted) if ticks is None else ticks:
            if self.x[0] <= tick <= self.x[1]:
                if has_lines:
                    yield self.upright("grid", tick)
                label = short(tick)
                x = min(self.across(tick), self.width - HALF_LETTER * len(label))  # inside of the picture
                yield self.text(x, self.height - 20, label)
        yield self.text(self.width - self.right, self.height - 4, name, "end")

    def svg(self, label: str, *parts: str, style: str = "") -> Markup:
        """The picture; `label` describes it to screen readers, `style` is for a file of its own."""
        size = f"0 0 {self.width} {self.height}"
        inner = (tag("style", style), *parts) if style else parts
        return tag("svg", *inner, xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img", aria_label=label)


def make_ticks(low: float, high: float, wanted: int) -> list[float]:
    """About `wanted` steps of 1, 2 or 5 times a power of ten that cover low to high."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def value_ticks(values: Iterable[float], wanted: int, *, from_zero: bool = False, least: float = 1e-6) -> list[float]:
    """Ticks of a value axis that covers all values; those that differ by less than `least` of them get room."""
    known = [*values, 0.0] if from_zero else list(values)
    low, high = min(known), max(known)
    if high - low <= max(least * max(abs(low), abs(high)), TINY):
        room = max(abs(high) * 0.1, TINY) if abs(high) > TINY else 1.0
        low, high = (low if from_zero else low - room), high + room
    return make_ticks(low, high, wanted)


def place_ticks(places: Sequence[float], mark: float | None, wanted: int = 5) -> list[float]:
    """Ticks of an x axis that begins and ends with one and covers all places, and the mark unless that is far left."""
    ticks = value_ticks(places, wanted, least=LEAST_SPAN)
    if mark is None or mark < 2 * ticks[0] - ticks[-1]:
        return ticks
    return value_ticks([*places, mark], wanted, least=LEAST_SPAN)


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """The ticks as text, with equally many digits after the point."""
    if max(map(abs, ticks)) >= 1000:
        return [short(tick) for tick in ticks]
    digits = max(len(short(tick).partition(".")[2]) for tick in ticks)
    return [f"{tick:.{digits}f}" for tick in ticks]


def figure(title: str, drawing: str, *more: str, note: str = "", value: str = "") -> Markup:
    """A drawing with its caption: the title, a note on the reference line, and a value at the right."""
    return tag("figure", tag("figcaption", title, tag("span", note), tag("strong", value)), drawing, *more)


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """A list of (sample of how something is drawn, what it is)."""
    return tag("ul", *(tag("li", sample, name) for sample, name in entries), class_="legend")


def corners(places: Iterable[tuple[float, float]]) -> str:
    """Places in pixels as the points of a polyline."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
