"""A run as its page in `heterps ui` shows it: how its job stands now, then the report of what it has written so far."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from heterps.report.emulated import is_emulated, scale_of
from heterps.report.figures import duration, rate, usd
from heterps.report.meaning import RUNNING
from heterps.report.page.run import headline_tiles, render_run
from heterps.report.page.templates import render
from heterps.report.read_run import RecordedRun
from heterps.report.run_details import RunDetails
from heterps.report.stage_figures import DOINGS, StageFigures, bottleneck, percent
from heterps.report.terminal.profile_table import size
from heterps.report.traffic import saved, traffic_of, travelled

MOST_BARS = 800
"""Bars of the timelines of a page that is sent again while its job runs."""


@dataclass(frozen=True)
class Now:
    """How a run stands. `status` is what its job says; None where it is over, or did not answer in time.

    checkpoints  name, and when it was finished in seconds since 1970; the newest first
    logs         name and end of each
    """

    name: str
    is_running: bool
    status: dict[str, Any] | None
    checkpoints: list[tuple[str, float]]
    logs: list[tuple[str, str]]


def render_run_now(now: Now, recorded: RecordedRun | None, why: str, details: RunDetails = RunDetails()) -> str:
    """The body of the page. `why` says why nothing was recorded yet."""
    told = Markup(render_status(now.status, recorded)) if now.is_running else Markup()  # its values are escaped
    if recorded is None:
        page = render("unrecorded.html.j2", name=now.name, now=told, why=why)
    else:
        summary = recorded.summary | ({"status": RUNNING} if now.is_running else {})
        page = render_run(
            recorded.job, recorded.plan, summary, recorded.metrics, details,
            frame="part.html.j2", now=told, most_bars=MOST_BARS,
        )  # fmt: skip
    moments = [(name, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))) for name, at in now.checkpoints]
    return page + render("kept.html.j2", checkpoints=moments, logs=now.logs)


def render_status(status: dict[str, Any] | None, recorded: RecordedRun | None) -> str:
    """The section at the top of the page: how the job stands now, which is soon made and sent each second."""
    stages = [] if status is None else _newest_stages(status, recorded)
    return render(
        "now.html.j2",
        is_answered=status is not None,
        figures=[] if status is None else _tiles(status, stages, recorded),
        share=_share(status),
        notes=[] if status is None else _notes(status),
        heads=("Stage", "Workers", "Samples/s", *(doing.capitalize() for doing in DOINGS), "Queue"),
        stages=_rows(stages),
    )


def _share(status: dict[str, Any] | None) -> float | None:
    """The part of the samples that was trained on."""
    return None if status is None or not status.get("total") else min(1.0, status["samples"] / status["total"])


def _newest_stages(status: dict[str, Any], recorded: RecordedRun | None) -> list[StageFigures]:
    """The stages in the open interval; in its first moments, when nothing was measured, those of the one before."""
    stages: list[StageFigures] = status.get("stages") or []
    if any(stage.get("samples_per_s") for stage in stages) or recorded is None or not recorded.metrics:
        return stages
    return recorded.metrics[-1].get("stages") or stages


def _tiles(
    status: dict[str, Any], stages: list[StageFigures], recorded: RecordedRun | None
) -> list[tuple[str, str, str]]:
    speed = min((stage.get("samples_per_s") or 0.0 for stage in stages), default=0.0)
    left = max(0, status["total"] - status["samples"])
    per_hour = status.get("usd_per_hour")
    predicted = None if recorded is None else recorded.summary.get("predicted_usd")
    bill = f"{usd(per_hour)} an hour" if per_hour is not None else ""
    if predicted is not None and recorded is not None and recorded.plan.is_predicted:
        bill = f"{bill}; the whole job: {usd(recorded.plan.usd)} predicted"
    tiles = [
        *([] if recorded is None else headline_tiles(recorded.job, recorded.summary)[:1]),
        ("Samples", f"{status['samples']:,}", f"of {status['total']:,}, after {duration(status['seconds'])}"),
        (
            "Samples/s now",
            rate(speed),
            _left(status, left / speed) if speed else "it begins",
        ),
        ("Cost so far", usd(status["usd"]), bill),
    ]
    if status.get("staleness") is not None:
        tiles.append(("Staleness", f"{status['staleness']:g}", "updates between a pull and its push"))
    tables = recorded.metrics[-1] if recorded is not None and recorded.metrics else {}
    if tables.get("table_bytes"):
        tiles.append(("Tables", size(tables["table_bytes"]), f"{tables['rows']:,} rows after the last interval"))
    if (traffic := traffic_of(status)) is not None:
        less = f"{size(saved(traffic))} saved" if saved(traffic) else ""
        tiles.append(("Traffic", size(travelled(traffic)), less))
    return tiles


def _left(status: dict[str, Any], left_s: float) -> str:
    """Return how long the rest will take: of emulated units, in their seconds and in those of this machine."""
    if not is_emulated(status):
        return f"{duration(left_s)} left"
    return f"{duration(left_s)} left, emulated; {duration(left_s * scale_of(status))} here"


def _notes(status: dict[str, Any]) -> list[str]:
    told = (("change", "Changes now"), ("last_change", "Last change"), ("alarm", "Warning"))
    return [f"{word}: {status[field]}." for field, word in told if status.get(field)]


def _rows(stages: list[StageFigures]) -> list[tuple[str, ...]]:
    slowest = bottleneck(stages) if stages else None
    return [
        (
            f"{number + 1} {stage['resource']}{' (bottleneck)' if number == slowest and len(stages) > 1 else ''}",
            f"{stage['workers']:,}",
            rate(stage["samples_per_s"] or 0.0),
            *(percent(stage.get(doing)) for doing in DOINGS),
            f"{stage['queue']:.1f}",
        )
        for number, stage in enumerate(stages)
    ]
