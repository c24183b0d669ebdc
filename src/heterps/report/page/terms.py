"""The seconds of a batch as bars, predicted above measured: of the whole run by term, and of each station.

all       predicted  |== compute ==|= servers =|· overhead ·|
          measured   |== compute ===|= communicate =|· wait ·|
1 cpu     predicted  |== compute ==|= communicate =|
          measured   |== compute ===|= communicate =|· wait ·|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from heterps.config import Job
from heterps.errors import HeterpsError
from heterps.planning.plan import Plan
from heterps.profiling.profile import Profile
from heterps.report.figures import batch_time
from heterps.report.meaning import follows_plan
from heterps.report.page.charts import bar
from heterps.report.page.panel import figure, legend, tag

KINDS = {"compute": "compute", "communicate": "communicate", "servers": "communicate", "network": "communicate",
         "overhead": "wait", "wait": "wait"}  # fmt: skip
"""How the time of a term is drawn."""
WIDTH, ROW, GAP, LEFT = 720, 18, 6, 190


@dataclass(frozen=True)
class TermsRow:
    """One bar: what it is of, and the seconds of a batch by term."""

    title: str
    seconds: dict[str, float]


def terms_figure(job: Job, plan: Plan, summary: dict[str, Any], profile: Profile | None) -> Markup:
    """The figure; nothing where nothing was predicted term by term or station by station."""
    rows = [*_terms(summary), *_stations(job, plan, summary, profile)]
    return _draw(rows) if rows else Markup()


def _terms(summary: dict[str, Any]) -> list[TermsRow]:
    told = {word: summary.get(f"{word}_terms") for word in ("predicted", "measured")}
    if None in told.values():
        return []
    return [
        TermsRow(f"a batch, {word}", {name.removesuffix("_s"): seconds for name, seconds in terms.items()})
        for word, terms in told.items()
        if terms is not None
    ]


def _stations(job: Job, plan: Plan, summary: dict[str, Any], profile: Profile | None) -> list[TermsRow]:
    """Two rows for each stage of a plan that was followed, and one for its servers, which measure no time."""
    from heterps.planning.api import make_problem
    from heterps.planning.explain import stations

    throughput = summary.get("measured_throughput")
    if profile is None or not plan.is_predicted or not follows_plan(summary) or not throughput:
        return []
    try:
        problem = make_problem(
            profile.at_batch_size(job.data.batch_size), job.cluster, plan.throughput, max(1, summary["samples"]),
            **plan.asked,
        )  # fmt: skip
        found = stations(problem, plan)
    except (HeterpsError, ValueError):  # a plan of another cluster
        return []
    batch_s = job.data.batch_size / throughput
    rows = []
    for number, station in enumerate(found):
        title = f"{number + 1} {station.resource}" if number < len(plan.stages) else "servers"
        rows.append(TermsRow(f"{title}, predicted", {"compute": station.compute_s, "communicate": station.comm_s}))
        if number < len(plan.stages) and number < len(summary["stages"]):
            shares = summary["stages"][number]
            measured = {doing: (shares.get(doing) or 0.0) * batch_s for doing in ("compute", "communicate", "wait")}
            rows.append(TermsRow(f"{title}, measured", measured))
    return rows


def _draw(rows: Sequence[TermsRow]) -> Markup:
    longest_s = max(sum(row.seconds.values()) for row in rows) or 1.0
    parts: list[str] = []
    for number, row in enumerate(rows):
        y, x = float(number * (ROW + GAP)), float(LEFT)
        parts.append(tag("text", row.title, x=0.0, y=y + ROW - 5))
        for name, seconds in row.seconds.items():
            width = (WIDTH - LEFT) * seconds / longest_s
            if width > 0:
                parts.append(
                    bar(f"share {KINDS[name]}", f"{row.title}: {name} {batch_time(seconds)}", x, y, width, ROW)
                )
            x += width
    height = len(rows) * (ROW + GAP)
    label = f"Seconds of a batch, predicted and measured: {'; '.join(_words(row) for row in rows)}"
    drawing = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label)
    samples = {"compute": "compute", "communicate": "communicate, servers, network", "wait": "wait, overhead"}
    entries = [(_sample(kind), name) for kind, name in samples.items()]
    return figure("Seconds of a batch", drawing, legend(entries), value=f"{batch_time(longest_s)} at most")


def _words(row: TermsRow) -> str:
    return f"{row.title} {', '.join(f'{name} {batch_time(seconds)}' for name, seconds in row.seconds.items())}"


def _sample(kind: str) -> Markup:
    return tag("svg", tag("rect", class_=f"sample share {kind}", width=16, height=12), viewBox="0 0 16 12")
