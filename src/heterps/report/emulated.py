"""Marks and warnings for figures of emulated units: that they are emulated, and how well this machine kept up.

`figures` are a line of metrics.jsonl, a summary, or a view of a running job: `emulated` of them has the time scale.
"""

from __future__ import annotations

import math
from typing import Any

from heterps.report.figures import duration
from heterps.report.stage_figures import title

MARK = "EMULATED"
LATE = 0.05
"""Largest part of a stage's time by which its computing may be late without a warning."""


def is_emulated(figures: dict[str, Any]) -> bool:
    return bool(figures.get("emulated"))


def scale_of(figures: dict[str, Any]) -> float:
    """Real seconds for each second that is shown; 1 without emulation."""
    return float(figures["emulated"]["scale"]) if is_emulated(figures) else 1.0


def seconds_word(figures: dict[str, Any]) -> str:
    """The suffix of times and rates: `, emulated`, or nothing."""
    return ", emulated" if is_emulated(figures) else ""


def banner(figures: dict[str, Any]) -> str:
    """A sentence that says what is emulated and at which scale, to stand after MARK."""
    return (
        f"seconds, samples/s and USD are those of the units that this machine emulates; one of their seconds takes "
        f"{scale_of(figures):g} real ones"
    )


def late_stages(figures: dict[str, Any]) -> list[int]:
    """Emulated stages, numbered from 0, that this machine is too slow for."""
    stages = (figures.get("stages") or []) if is_emulated(figures) else []
    return [number for number, stage in enumerate(stages) if (stage.get("late") or 0.0) > LATE]


def late_warnings(figures: dict[str, Any]) -> list[str]:
    """A warning where this machine could not keep up with its emulated units: which stages, by how much, what to do.

    The advised scale is larger by the ratio of predicted to measured throughput, so that this machine needs to do no
    more in a real second than it did.
    """
    stages = figures.get("stages") or []
    late = {number: stages[number] for number in late_stages(figures)}
    if not late:
        return []
    named = ", ".join(
        f"{title(stages, number)} was late by {duration(stage['late_s'])} of this machine, {stage['late']:.0%} of "
        "its workers' time"
        for number, stage in late.items()
    )
    scale = scale_of(figures)
    predicted, measured = figures.get("predicted_throughput") or 0.0, figures.get("samples_per_s") or 0.0
    is_slower = predicted > measured > 0
    remedy = f"to {_two_digits_up(scale * predicted / measured):g}" if is_slower else f"above {scale:g}"
    return [
        f"this machine could not keep up with the units that it emulates: {named}. Their figures are worse than real "
        f"units would have: raise emulation.scale {remedy}"
    ]


def _two_digits_up(value: float) -> float:
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / power * (1 - 1e-9)) * power:.12g}")
