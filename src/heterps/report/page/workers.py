"""What the page of a run shows of its workers over time: what each did, what the policies had them do, and staleness.

What workers did      worker-1.0  |=compute=|communicate|..wait..|=compute=|        by the workers' own clocks
Stage 1 (ssp:3)       lane-0      |====== step ======|..wait..|== step ==|          by what the policy was told
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from heterps.report.figures import UNDEFINED, batch_time, duration, plural
from heterps.report.observed import ObservedPolicy
from heterps.report.page.charts import draw_histogram
from heterps.report.page.panel import figure
from heterps.report.page.timeline import zoomable_timeline
from heterps.report.stage_figures import DOINGS
from heterps.report.terminal.simulation_table import make_groups, share
from heterps.report.terminal.timeline import Timeline
from heterps.report.worker_times import WorkersOverTime, WorkerTimes
from heterps.sim.result import COMPUTE, WAIT

MOST_BARS = 4000
"""Bars of all timelines of a page together, each about 150 bytes."""
MOST_WORKERS = 64
STEPS = {COMPUTE: "works on a batch", WAIT: "waits for others"}
WORDS = {"compute": "computes", "communicate": "communicates", "wait": "waits"}


def worker_values(workers: WorkersOverTime | None, most_bars: int = MOST_BARS) -> dict[str, Any] | None:
    """What run.html.j2 shows of what workers did; None where it was not written down."""
    if workers is None or workers.window is None:
        return None
    spent = {doing: sum(worker.seconds(doing) for worker in workers.workers) for doing in DOINGS}
    whole_s = sum(spent.values())
    compute, communicate, wait = (share(spent[doing], whole_s) for doing in DOINGS)
    part = "" if workers.is_whole else f", in the last {duration(_seconds(workers))} that were written down"
    who = "The worker" if len(workers.workers) == 1 else f"The {len(workers.workers):,} workers"
    return {
        "told": f"{who} computed {compute} of the time, communicated {communicate} and waited {wait}{part}.",
        "timelines": _timelines(workers, "zoom-workers", WORDS, most_bars, is_stacked=True),
        "heads": ("Worker", *(doing.capitalize() for doing in DOINGS)),
        "rows": [
            (worker.name, *(share(worker.seconds(doing), sum(map(worker.seconds, DOINGS))) for doing in DOINGS))
            for worker in workers.workers[:MOST_WORKERS]
        ],
    }


def policy_values(policies: Sequence[ObservedPolicy], most_bars: int = MOST_BARS) -> list[dict[str, Any]]:
    """What run.html.j2 shows of each policy: timelines, how stale gradients were, and a table of lanes."""
    each = most_bars // max(1, len(policies))
    return [_policy_values(policy, number, each) for number, policy in enumerate(policies, 1)]


def _policy_values(policy: ObservedPolicy, number: int, most_bars: int) -> dict[str, Any]:
    result = policy.result
    part = "" if policy.is_whole else f"; its last {duration(_seconds(result))}"
    return {
        "title": f"{policy.title} ({result.policy}{part})",
        "timelines": _timelines(result, f"zoom-{number}", STEPS, most_bars),
        "staleness": None if policy.has_rounds else _draw_staleness(policy),
        "told": _told(policy),
        "heads": ("Worker", "Steps", "Time of a step", "Waits", "Waiting", "Of its time"),
        "rows": [
            (
                group.name,
                f"{_mean(group.workers, 'pushes'):,.0f}",
                batch_time(_mean(group.workers, "seconds")),
                f"{_mean(group.workers, 'waits'):,.0f}",
                duration(_mean(group.workers, "wait_s")),
                share(_mean(group.workers, "wait_s"), _mean(group.workers, "wait_s", "compute_s")),
            )
            for group in make_groups(result.workers, 32)
        ],
    }  # fmt: skip


def _mean(workers: Sequence[Any], *fields: str) -> float:
    return float(sum(getattr(worker, field) for worker in workers for field in fields)) / len(workers)


def _seconds(timeline: Timeline) -> float:
    first, last = timeline.window or (0.0, 0.0)
    return last - first


class _TimelinePart(NamedTuple):
    """A part of a timeline."""

    workers: tuple[WorkerTimes, ...]
    window: tuple[float, float] | None
    end_s: float


def _timelines(
    whole: Timeline, name: str, words: dict[str, str], most_bars: int, *, is_stacked: bool = False
) -> list[Markup]:
    """The timeline step by step; of a long one all of it in cells, and its end step by step."""
    if sum(len(worker.segments) for worker in whole.workers) <= most_bars:
        charts: list[tuple[str, Timeline]] = [("Step by step", whole)]
    else:
        end = _end_of(whole, most_bars // 2)
        charts = [("In all", whole), (f"The last {duration(_seconds(end))}, step by step", end)]
    return [
        zoomable_timeline(
            title, one, f"{name}-{i}", words=words, most_bars=most_bars // len(charts), is_stacked=is_stacked
        )
        for i, (title, one) in enumerate(charts)
        if one.window is not None
    ]


def _end_of(whole: Timeline, num_bars: int) -> Timeline:
    """The timeline with the last segments only, about `num_bars` of them."""
    ends = sorted((segment.end for worker in whole.workers for segment in worker.segments), reverse=True)
    _, last = whole.window or (0.0, whole.end_s)
    first = ends[min(num_bars, len(ends) - 1)]
    workers = tuple(
        WorkerTimes(worker.name, tuple(segment for segment in worker.segments if segment.end > first), worker.left_s)
        for worker in whole.workers
    )
    return _TimelinePart(workers, (first, last) if last > first else None, last)


def _draw_staleness(policy: ObservedPolicy) -> Markup:
    result = policy.result
    label = f"staleness of the gradients of {policy.title}: {_told(policy)}"
    drawing = draw_histogram(label, result.staleness, "updates of others", "gradients")
    mean = UNDEFINED if result.mean_staleness is None else f"{result.mean_staleness:.2f} in the mean"
    return figure("Staleness of gradients", drawing, value=mean)


def _told(policy: ObservedPolicy) -> str:
    """What the charts of a policy show, in sentences."""
    result = policy.result
    waiting = share(result.wait_s, result.present_s)
    words = [f"{plural(result.pushes, 'step')}; workers waited for others {waiting} of their time."]
    if policy.has_rounds:
        words.append("Gradients of a round are applied together, so that none is stale.")
    elif result.staleness:
        fresh, most = result.staleness.get(0, 0), max(result.staleness)
        words.append(
            f"{share(fresh, sum(result.staleness.values()))} of the gradients missed no update of others; the stalest "
            f"missed {most:,}."
        )
    if result.dropped:
        words.append(f"{plural(result.dropped, 'gradient')} came too late for the round and went to waste.")
    return " ".join(words)
