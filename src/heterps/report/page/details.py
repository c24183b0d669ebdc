"""What the page of a run shows of its details: the chain of layers, other plans, events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heterps.config import Job
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import duration, rate, usd
from heterps.report.page.charts import draw
from heterps.report.page.frontier import frontier_chart
from heterps.report.page.layer_chain import ChainStage, planned_chain

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
