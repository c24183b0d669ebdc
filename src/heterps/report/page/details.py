"""What the page of a run shows of its details: the chain of layers, other plans, traffic, events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from heterps.config import Job
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import UNDEFINED, duration, rate, usd
from heterps.report.page.charts import Chart, draw
from heterps.report.page.frontier import frontier_chart
from heterps.report.page.layer_chain import ChainStage, planned_chain
from heterps.report.terminal.profile_table import size

if TYPE_CHECKING:  # its kernels take a while to load
    from heterps.planning.frontier import Frontier

MOST_EVENTS = 200
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
