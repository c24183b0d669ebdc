"""What the page of a run by a plan shows of its stages: what each did, how they were kept in step, and a chart each."""

from __future__ import annotations

from typing import Any

from heterps.planning.plan import Plan
from heterps.report.emulated import seconds_word
from heterps.report.figures import plural, rate
from heterps.report.meaning import COMPLETED, UNFINISHED, UNPREDICTED, follows_plan
from heterps.report.page.charts import MAX_POINTS, Span, draw_shares, share_legend
from heterps.report.stage_figures import DOINGS, StageFigures, bottleneck, in_step, percent, recoveries, title

MOST_SPANS = 1200
"""Intervals that the charts of all stages show together, so that a page of many stages stays small."""


def stage_values(plan: Plan, summary: dict[str, Any], metrics: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What run.html.j2 shows of the stages; None for a run that follows no plan: it is one stage on one worker."""
    stages = summary["stages"] if follows_plan(summary) else None
    if not stages:
        return None
    slowest = bottleneck(stages)
    doings = (doing.capitalize() for doing in DOINGS)
    most = min(MAX_POINTS, max(1, MOST_SPANS // len(stages)))
    compute = [percent(stage.get("compute")) for stage in stages]
    return {
        "heads": ("Stage", "Layers", "Workers", f"Samples/s{seconds_word(summary)}", *doings, "Queue"),
        "rows": [_row(stages, number, plan, is_slowest=number == slowest) for number in range(len(stages))],
        "notes": _notes(plan, summary),
        "when": _when(summary),
        "legend": share_legend(),
        "charts": [
            draw_shares(f"S{title(stages, i)[1:]}", f"{share} compute", _spans(metrics, i), most)
            for i, share in enumerate(compute)
        ],
    }


def _row(stages: list[StageFigures], number: int, plan: Plan, *, is_slowest: bool) -> tuple[str, ...]:
    stage = stages[number]
    planned = plan.stages[number] if len(plan.stages) == len(stages) else None
    return (
        f"{number + 1} {stage['resource']}{' (bottleneck)' if is_slowest else ''}",
        ""
        if planned is None
        else f"{planned.first}"
        if planned.first == planned.last
        else f"{planned.first} to {planned.last}",
        f"{stage['workers']:,}",
        rate(stage["samples_per_s"] or 0.0),
        *(percent(stage.get(doing)) for doing in DOINGS),
        f"{stage['queue']:.1f}",
    )


def _notes(plan: Plan, summary: dict[str, Any]) -> list[str]:
    stages = summary["stages"]
    notes = [f"Kept in step by {in_step(summary)}."]
    if [stage["workers"] for stage in stages] != [stage.count for stage in plan.stages]:
        notes.append("The numbers of workers are no longer those of the plan: what it predicts is for its own.")
    if summary.get("predicted_throughput") is None:
        notes.append(f"{UNPREDICTED}.")
    if restarts := summary.get("restarts"):
        notes.append(f"Resumed {plural(restarts, 'time')}.")
    if replaced := recoveries(summary):
        notes.append(replaced)
    return notes


def _when(summary: dict[str, Any]) -> str:
    if summary["status"] == UNFINISHED:
        return "in the last interval"
    return (
        "over the whole run"
        if summary["status"] == COMPLETED and not summary.get("restarts")
        else "since its last start"
    )


def _spans(metrics: list[dict[str, Any]], number: int) -> list[Span]:
    """One span per interval; without shares where the run had other stages at that time."""
    spans, start = [], 0
    for line in metrics:
        stages = line.get("stages") or []
        stage = stages[number] if number < len(stages) else {}
        known = all(stage.get(doing) is not None for doing in DOINGS)
        shares = tuple(stage[doing] for doing in DOINGS) if known else None
        spans.append(Span(start, line["samples"], shares))
        start = line["samples"]
    return spans
