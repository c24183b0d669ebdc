"""The what-if page of a run: fields to change, and below them the plan that follows (planned.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from heterps.planning.variants import ANY, POLICIES
from heterps.report.page.templates import render

COLUMNS = {"price": "USD an hour", "limit": "Limit", "memory": "Memory in GB", "port": "Port in Gb/s"}
SPOT_COLUMNS = {
    "spot": "USD an hour of spot",
    "spots": "Limit of spot",
    "interruptions": "Interruptions an hour of spot",
}
ROOM, FASTER = 4.0, 20.0
"""How many times its first value the slider of a field reaches; that of the throughput reaches FASTER."""
REACH = {"price": 1.0, "limit": 8.0, "memory": 64.0, "port": 100.0, "deadline": 24.0, "spots": 8.0}
"""How far a slider reaches at least; the slider of a blank field reaches so far."""


@dataclass(frozen=True)
class Field:
    """A field of the form. `told` says what it is, `most` how far its slider reaches, `blank` what no text means."""

    name: str
    value: str
    told: str
    most: float
    is_whole: bool
    blank: str


@dataclass(frozen=True)
class Row:
    """The fields of a resource or a machine."""

    name: str
    fields: list[Field]


def render_what_if(name: str, first: Mapping[str, str], now: Mapping[str, str], planned: str, refused: str) -> str:
    """The page of the run `name`.

    first    text of each field in the run          planned  HTML of the plan; "": it is still to be asked for
    now      text of those that were changed        refused  why there is no plan; "": there is one
    """
    offers = dict.fromkeys(field.partition(".")[2] for field in first if "." in field)
    spots = dict.fromkeys(field.partition(".")[2] for field in first if field.startswith("spot."))
    return render(
        "what_if.html.j2",
        up="../../",
        name=name,
        rows=[Row(offer, [_of_offer(short, offer, first, now) for short in COLUMNS]) for offer in offers],
        spots=[Row(offer, [_of_offer(short, offer, first, now) for short in SPOT_COLUMNS]) for offer in spots],
        has_spot=any(now.get(f"spot.{offer}", first[f"spot.{offer}"]) for offer in spots),
        fields=[
            _field("throughput", "Least samples/s", first, now, is_whole=True),
            _field("deadline", "Most hours", first, now, blank="none"),
            _field("samples", "Samples in all", first, now, is_whole=True),
        ],
        sync=now.get("sync", first["sync"]),
        policies=(*POLICIES, ANY),
        planned=Markup(planned),  # its values are escaped
        refused=refused,
    )


def _of_offer(short: str, offer: str, first: Mapping[str, str], now: Mapping[str, str]) -> Field:
    blank = "no limit" if short == "memory" else "as profiled" if short == "port" else ""
    blank = "none" if short in SPOT_COLUMNS else blank
    told = f"{(COLUMNS | SPOT_COLUMNS)[short]} {'' if short in SPOT_COLUMNS else 'of '}{offer}"
    return _field(f"{short}.{offer}", told, first, now, is_whole=short in ("limit", "spots"), blank=blank)


def _field(
    name: str, title: str, first: Mapping[str, str], now: Mapping[str, str], *, is_whole: bool = False, blank: str = ""
) -> Field:
    least = REACH.get(name.partition(".")[0], 1.0)
    room = FASTER if name == "throughput" else ROOM
    most = max(least, room * float(first[name])) if first[name] else least
    return Field(name, now.get(name, first[name]), title, most, is_whole, blank)
