"""The list of runs, the page around one run, and runs side by side, as `heterps ui` shows them."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from markupsafe import Markup

from heterps.config import Job
from heterps.report.figures import duration, rate, ratio, usd
from heterps.report.meaning import FINISHED, compare, measures_in
from heterps.report.page.charts import MAX_POINTS, Point, Series, draw_lines, thin_points
from heterps.report.page.templates import render
from heterps.report.read_run import RecordedRun

MOST_LINES = 500
"""Number of runs in the list; older ones are found by a search."""
MOST_POINTS = 480
"""Points that a chart shows of all runs together; of longer runs, means of neighbours."""
MOST_FIELD = 60
"""Characters of a job's field that are shown beside another's."""


class ListedRun(Protocol):
    """What a list says of a run."""

    @property
    def name(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def samples(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def usd(self) -> float | None: ...
    @property
    def score(self) -> tuple[str, float | None] | None: ...
    @property
    def changed(self) -> float: ...


def render_list(folder: str, lines: Sequence[ListedRun], search: str) -> str:
    """The list of runs. `search` is what was searched for."""
    shown = [
        {
            "name": line.name,
            "status": line.status,
            "mood": "good" if line.status in FINISHED else "open",
            "score": "" if line.score is None or not line.samples else f"{line.score[0]} {ratio(line.score[1])}",
            "samples": f"{line.samples:,}",
            "time": duration(line.seconds),
            "cost": usd(line.usd) if line.samples else "",
            "changed": time.strftime("%Y-%m-%d %H:%M", time.localtime(line.changed)),
        }
        for line in lines[:MOST_LINES]
    ]
    return render(
        "runs.html.j2", up="", folder=folder, lines=shown, search=search, num_left_out=len(lines) - len(shown)
    )


def render_watched(
    name: str,
    body: str,
    digest: str,
    status: Mapping[str, Any] | None,
    job: Job | None,
    *,
    is_running: bool,
    has_profile: bool,
) -> str:
    """The page around the body of a run, with what may be asked of its job, and of the planner if it has a profile."""
    stages = [] if status is None else status.get("stages") or []
    can_replan = job is not None and job.profile is not None and job.has_workers
    resources = job.cluster.resources.items() if job is not None and can_replan else ()
    return render(
        "watched.html.j2",
        up="../../",
        name=name,
        body=Markup(body),  # its values are escaped
        digest=digest,
        is_running=is_running,
        has_profile=has_profile,
        num_stages=len(stages) if job is not None and job.has_workers else 0,
        resources=[(resource, f"{found.usd_per_hour:.15g}", found.limit) for resource, found in resources],
    )


def render_comparison(runs: Mapping[str, RecordedRun], missing: Sequence[str], running: Collection[str] = ()) -> str:
    """Runs side by side. `missing` says why others that were asked for are not shown, `running` whose jobs run now."""
    fields = {name: _fields(run.job.model_dump(mode="json")) for name, run in runs.items()}
    different = [
        (field, *(_shown(found.get(field, "")) for found in fields.values()))
        for field in sorted({field for found in fields.values() for field in found} - {"name"})
        if len({str(found.get(field, "")) for found in fields.values()}) > 1
    ]
    return render(
        "compare.html.j2",
        up="",
        names=list(runs),
        missing=missing,
        figures=_figures(runs, running),
        charts=_charts(runs),
        fields=different,
    )


def _figures(runs: Mapping[str, RecordedRun], running: Collection[str]) -> list[tuple[str, ...]]:
    """Rows of the table: title, and the figure of each run."""
    summaries = [run.summary for run in runs.values()]
    measures = {m.field: m for summary in summaries for m in measures_in(summary)}
    rows = [
        ("Status", *("running" if n in running else str(run.summary["status"]) for n, run in runs.items())),
        ("Judged on", *(str(s["metrics_of"]) for s in summaries)),
        *((m.title, *(m.show(s[f]) if f in s else "" for s in summaries)) for f, m in measures.items()),
        ("Samples", *(f"{s['samples']:,}" for s in summaries)),
        ("Samples/s", *(rate(s["samples_per_s"]) for s in summaries)),
        ("Time", *(duration(s["seconds"]) for s in summaries)),
        ("Cost", *(usd(s["measured_usd"]) for s in summaries)),
    ]
    errors = [[(c.title, c.verdict) for c in compare(s)] for s in summaries]
    titles = dict.fromkeys(title for told in errors for title, _ in told)
    return [*rows, *((f"{title}: prediction", *(dict(told).get(title, "") for told in errors)) for title in titles)]


def _charts(runs: Mapping[str, RecordedRun]) -> list[Markup]:
    """A chart for each metric that some run has, and one of the speed."""
    measures = {m.field: m for run in runs.values() for m in measures_in(run.metrics[-1] if run.metrics else {})}
    shown = [(m.title, field, m.show) for field, m in measures.items()]
    found, most = [], min(MAX_POINTS, MOST_POINTS // max(1, len(runs)))
    for title, field, show in [*shown, ("Samples/s", "samples_per_s", rate)]:
        series = [
            Series(name, [(x, y, f"{show(y)} at {x:,} samples") for x, y in _points(run, field, most)])
            for name, run in runs.items()
        ]
        if any(one.points for one in series):
            found.append(draw_lines(title, series, x_name="samples", is_small=True))
    return found


def _shown(value: object) -> str:
    """The value of a field as it is written in a job, shortened; a dash: it is not set."""
    text = "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_FIELD else f"{text[: MOST_FIELD - 1]}…"


def _points(run: RecordedRun, field: str, most: int) -> list[tuple[float, float]]:
    known: list[Point] = [(line["samples"], line[field]) for line in run.metrics if line.get(field) is not None]
    return [(x, y) for x, y in thin_points(known, most) if y is not None]


def _fields(values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """The fields of a job by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _fields(value, f"{at}{name}.") if isinstance(value, Mapping) else {f"{at}{name}": value}
    return flat
