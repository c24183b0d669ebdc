"""What the stages of a run did, in words: shares of their time, which is the bottleneck, how far apart they ran.

A stage is a dict as in `stages` of metrics.jsonl and summary.json. People count stages from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

StageFigures = dict[str, Any]

DOINGS = {"compute": "█", "communicate": "▒", "wait": "·"}
"""What a worker spends its time on, and the character that shows it in a bar, readable without colours."""


def title(stages: Sequence[StageFigures], number: int) -> str:
    """The name of a stage as people say it: `stage 2 (v100)`. `number` starts at 0."""
    return f"stage {number + 1} ({stages[number]['resource']})"


def percent(share: float | None) -> str:
    """A share as a percentage; `-` where it is not known."""
    return "-" if share is None else f"{share:.0%}"


def bottleneck(stages: Sequence[StageFigures]) -> int | None:
    """The number of the stage that waits least, from 0; None for a single stage, or where nothing is known yet."""
    known = {number: stage["wait"] for number, stage in enumerate(stages) if stage.get("wait") is not None}
    return min(known, key=lambda number: known[number]) if len(stages) > 1 and len(known) == len(stages) else None


def busiest(stages: Sequence[StageFigures]) -> str:
    """A phrase about the stages: the bottleneck and what it does, or what the only stage does."""
    number = bottleneck(stages)
    if number is None and len(stages) > 1:
        return ""
    shown = ", ".join(f"{doing} {percent(stages[number or 0].get(doing))}" for doing in DOINGS)
    return f"{'bottleneck ' if number is not None else ''}{title(stages, number or 0)}: {shown}"


def cells(stage: StageFigures, width: int) -> list[tuple[str, str]]:
    """Pairs of (doing, its characters) that fill a bar of `width` characters; none where nothing is known."""
    if stage.get("compute") is None:
        return []
    bar, done, share = [], 0, 0.0
    for doing, letter in DOINGS.items():
        share += stage[doing]
        end = min(round(share * width), width)
        bar.append((doing, letter * (end - done)))
        done = end
    return bar


def group_title(group: str) -> str:
    """A key of `max_lead`, stages from 0 that are kept in step together, as people say it: `stages 1 and 2`."""
    numbers = [str(int(stage) + 1) for stage in group.split("-")]
    return f"stage {numbers[0]}" if len(numbers) == 1 else f"stages {', '.join(numbers[:-1])} and {numbers[-1]}"


def in_step(summary: dict[str, Any]) -> str:
    """How the workers were kept in step: `ssp:3; mean staleness 1.2 (updates of others); largest lead 4 (stage 1)`."""
    words = [f"{summary.get('sync', 'bsp')}", f"mean staleness {summary.get('staleness') or 0:.3g} (updates of others)"]
    leads = summary.get("max_lead") or {}
    if any(leads.values()):
        words.append("largest lead " + ", ".join(f"{lead} ({group_title(group)})" for group, lead in leads.items()))
    return "; ".join(words)


def recoveries(summary: dict[str, Any]) -> str:
    """How many workers were replaced while the others went on, in a sentence; "" if none was."""
    if not (number := summary.get("recoveries")):
        return ""
    lost = "1 worker was lost and replaced" if number == 1 else f"{number} workers were lost and replaced"
    return f"{lost}; {summary['repeated_samples']:,} samples were computed again."
