"""What the page of a run shows of its details: the chain of layers, workers over time, staleness, traffic, events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from heterps.config import Job
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import UNDEFINED, batch_time, duration, plural, rate, usd
from heterps.report.observed import ObservedPolicy
from heterps.report.page.charts import Chart, draw, draw_histogram
from heterps.report.page.frontier import frontier_chart
from heterps.report.page.layer_chain import ChainStage, planned_chain
from heterps.report.page.panel import figure
from heterps.report.page.timeline import zoomable_timeline
from heterps.report.terminal.profile_table import size
from heterps.report.terminal.simulation_table import make_groups, share
from heterps.sim.result import COMPUTE, WAIT, SimResult

if TYPE_CHECKING:  # its kernels take a while to load
    from heterps.planning.frontier import Frontier

MOST_BARS = 4000
"""Bars of all timelines of a page together, each about 150 bytes."""
MOST_EVENTS = 200
DOES = {COMPUTE: "works on a batch", WAIT: "waits for others"}
EVENT_WORDS = {"resumed": "Resumed", "changed": "Changed", "warned": "Warning"}


# --- the model -------------------------------------------------------------------------------------------------------


def chain_of(job: Job, plan: Plan, profile: Profile | None, colours: dict[str, str]) -> list[ChainStage] | None:
    """The model of a run as a chain of layers, with times where the run has a profile that is of them."""
    scaled = None if profile is None else profile.on(job.cluster).at_batch_size(job.data.batch_size)
    return planned_chain(plan, scaled, colours)


# --- cost against throughput -----------------------------------------------------------------------------------------


def cost_values(plan: Plan, summary: dict[str, Any], frontier: Frontier | None) -> dict[str, Any] | None:
    """What run.html.j2 shows of cost against throughput: the plan, the run and other plans. None without a frontier."""
    if frontier is None:
        return None
    samples = plan.samples or plan.throughput * plan.hours * 3600
    spots = [(plan.throughput, plan.usd, "the plan")]
    if summary["samples"] and summary["measured_throughput"]:
        run_usd = summary["measured_usd"] * samples / summary["samples"]
        spots.append((summary["measured_throughput"], run_usd, "the run, as measured"))
    points = [(one.throughput, one.usd, "cheapest for its throughput") for one in frontier.plans]
    return {
        "chart": draw(frontier_chart(frontier, plan.throughput, spots, "planned")),
        "rows": [(rate(x), usd(y), name) for x, y, name in (*spots, *points)],
        "samples": f"{samples:,.0f}",
    }


# --- workers ---------------------------------------------------------------------------------------------------------


def worker_values(policies: Sequence[ObservedPolicy], most_bars: int = MOST_BARS) -> list[dict[str, Any]]:
    """What run.html.j2 shows of each policy: timelines, how stale gradients were, and a table of workers."""
    each = most_bars // max(1, len(policies))
    return [_policy_values(policy, number, each) for number, policy in enumerate(policies, 1)]


def _policy_values(policy: ObservedPolicy, number: int, most_bars: int) -> dict[str, Any]:
    result = policy.result
    part = "" if policy.is_whole else f"; its last {duration(_seconds(result))}"
    is_short = sum(len(worker.segments) for worker in result.workers) <= most_bars
    shown = result if is_short else _end_of(result, most_bars // 2)
    charts = [] if is_short else [("In all", result)]
    charts.append(("Step by step" if is_short else f"The last {duration(_seconds(shown))}, step by step", shown))
    return {
        "title": f"{policy.title} ({result.policy}{part})",
        "timelines": [
            zoomable_timeline(title, one, f"zoom-{number}-{i}", words=DOES, most_bars=most_bars // len(charts))
            for i, (title, one) in enumerate(charts)
            if one.window is not None
        ],
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


def _seconds(result: SimResult) -> float:
    first, last = result.window or (0.0, 0.0)
    return last - first


def _end_of(result: SimResult, num_bars: int) -> SimResult:
    """The result with the last segments only, about `num_bars` of them."""
    ends = sorted((segment.end for worker in result.workers for segment in worker.segments), reverse=True)
    _, last = result.window or (0.0, result.end_s)
    first = ends[min(num_bars, len(ends) - 1)]
    workers = tuple(
        replace(worker, segments=tuple(segment for segment in worker.segments if segment.end > first))
        for worker in result.workers
    )
    return replace(result, workers=workers, window=(first, last) if last > first else None)


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


# --- traffic ---------------------------------------------------------------------------------------------------------

TRAFFIC = {
    "bytes_sent": "Sent by sockets",
    "bytes_received": "Received by sockets",
    "bytes_shared": "By shared memory",
}


def traffic_values(metrics: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What run.html.j2 shows of the bytes between workers and servers; None where none were counted."""
    lines = [line for line in metrics if line.get("servers")]
    if not lines or not sum(lines[-1]["servers"].get(name, 0) for name in TRAFFIC):
        return None
    servers, cache, tiers = lines[-1]["servers"], metrics[-1].get("cache"), metrics[-1].get("tiers")
    samples = lines[-1]["samples"] - _since(lines)
    rows = [
        (
            title,
            size(servers.get(name, 0)),
            f"{size(round(servers.get(name, 0) / samples))} a sample" if samples else "",
        )
        for name, title in TRAFFIC.items()
    ]
    if cache and cache.get("hit_rate") is not None:
        saved = f"{cache['num_hits']:,} of {cache['num_hits'] + cache['num_misses']:,} rows"
        rows.append(("Saved by copies of rows", saved, f"{cache['hit_rate']:.1%} were not pulled"))
    if tiers and tiers.get("hit_rate") is not None:
        rows.append(("Found in memory", f"{tiers['hit_rate']:.1%}", "the others came from disk"))
    rows += [
        (title, f"{servers[name]:,}", note)
        for name, title, note in (
            ("retries", "Requests sent again", "no answer came in time"),
            ("dropped", "Messages lost", "or not understood"),
        )
        if servers.get(name)
    ]
    chart = Chart("Bytes a sample", _per_sample(lines), lambda v: UNDEFINED if v is None else size(round(v)),
                  lambda v: size(round(v)), from_zero=True)  # fmt: skip
    return {"rows": rows, "chart": draw(chart) if len(lines) > 1 else ""}


def _total(line: dict[str, Any]) -> int:
    return sum(line["servers"].get(name, 0) for name in TRAFFIC)


def _since(lines: list[dict[str, Any]]) -> int:
    """The samples at which counting began: counts begin anew with each start of the run."""
    begun = 0
    for before, line in pairwise(lines):
        if _total(line) < _total(before):
            begun = before["samples"]
    return begun


def _per_sample(lines: list[dict[str, Any]]) -> list[tuple[float, float | None]]:
    """Bytes a sample of each interval; None where counting began anew in it."""
    points: list[tuple[float, float | None]] = []
    for before, line in pairwise([{"samples": 0, "servers": {}}, *lines]):
        samples, num_bytes = line["samples"] - before["samples"], _total(line) - _total(before)
        points.append((line["samples"], num_bytes / samples if samples > 0 and num_bytes >= 0 else None))
    return points


# --- events ----------------------------------------------------------------------------------------------------------


def event_rows(events: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Faults, recoveries and changes of workers with their moments, the newest of them."""
    return [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"])),
            f"{event['samples']:,}",
            duration(event["seconds"]),
            EVENT_WORDS.get(event["event"], event["event"]),
            f"{event['text'][:1].upper()}{event['text'][1:]}",
        )
        for event in events[-MOST_EVENTS:]
    ]
