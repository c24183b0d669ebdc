"""The report of a run as one HTML page: no script, nothing loaded from anywhere, light and dark.

headline           what it trained to, in how long, for how much
prediction         what the plan promised beside what was measured
plan               layers by resource
stages             of a run by a plan: what each did, and when
details            layers with times, workers over time, staleness, traffic, faults: what the run folder has of them
charts             the course of training
metrics, data      the same as tables, with what they mean
job                everything that defined the run

run.html.j2 says what the page looks like; here are the values that it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from heterps.config import Job, Schema
from heterps.planning.inline import cpu_resource
from heterps.planning.plan import Plan
from heterps.report.emulated import MARK, banner, is_emulated, late_warnings, seconds_word
from heterps.report.figures import UNDEFINED, duration, plural, rate, ratio, usd
from heterps.report.meaning import (
    COMPLETED,
    DIVERGED,
    FINISHED,
    RUNNING,
    UNFINISHED,
    against_teacher,
    compare,
    follows_plan,
    headline,
    in_sentence,
    measures_in,
    metrics_of,
    not_rented,
    promised,
    usd_per_billion,
    usd_without,
    verdict,
)
from heterps.report.page.charts import Chart, draw
from heterps.report.page.details import chain_of, cost_values, event_rows
from heterps.report.page.layer_chain import colours_of
from heterps.report.page.panel import tag
from heterps.report.page.stages import stage_values
from heterps.report.page.templates import render
from heterps.report.page.terms import terms_figure
from heterps.report.page.traffic import traffic_values
from heterps.report.page.workers import MOST_BARS, policy_values, worker_values
from heterps.report.run_details import RunDetails
from heterps.report.terminal.profile_table import size
from heterps.yamlfile import dump_yaml

Lines = list[dict[str, Any]]


def render_run(
    job: Job,
    plan: Plan,
    summary: dict[str, Any],
    metrics: Lines,
    details: RunDetails = RunDetails(),
    *,
    frame: str = "base.html.j2",
    now: Markup = Markup(),
    most_bars: int = MOST_BARS,
) -> str:
    """The page. `summary` is summary.json, `metrics` the lines of metrics.jsonl, of which there may be none.

    `frame` is the template around its body. `now` says how its job stands, in place of the tiles at the top.
    `most_bars` is about how many bars its timelines have.
    """
    colours = colours_of(job.cluster.resources)
    is_passed_over = job.plan is not None and not follows_plan(summary)
    missing = (summary.get("data") or {}).get("missing") or {}
    metric_heads, metric_rows = _metrics(summary)
    return render(
        "run.html.j2",
        frame=frame,
        now=now,
        job=job,
        plan=plan,
        summary=summary,
        mood=_mood(summary["status"]),
        trained_on=job.data.train if isinstance(job.data.train, str) else ", ".join(job.data.train),
        headline=headline_tiles(job, summary),
        MARK=MARK,
        banner=banner(summary) if is_emulated(summary) else "",
        late_warnings=late_warnings(summary),
        predictions=[
            (c.title, "–" if c.predicted is None else c.show(c.predicted), c.show(c.measured), c.verdict)
            for c in compare(summary)
        ],
        terms=terms_figure(job, plan, summary, details.profile),
        prices=_prices(job, {cpu_resource(job.cluster)} if is_passed_over else set(plan.units)),
        promise=_promise(plan, summary),
        colour=lambda resource: colours.get(resource, "colour-0"),
        num_layers=lambda stage: stage.last - stage.first + 1,
        not_rented=_sentence(not_rented(plan)) if is_passed_over else "",
        costs=cost_values(plan, summary, details.frontier),
        chain=chain_of(job, plan, details.profile, colours),
        stages=stage_values(plan, summary, metrics),
        workers=worker_values(details.workers, most_bars // 2 if details.policies else most_bars),
        policies=policy_values(details.policies, most_bars // 2 if details.workers else most_bars),
        traffic=traffic_values(metrics),
        events=event_rows(details.events),
        problems=details.problems,
        charts=[draw(chart) for chart in _charts(summary, metrics)] if metrics else [],
        metric_heads=metric_heads,
        metric_rows=metric_rows,
        metrics_of=metrics_of(summary),
        num_missing=sum(missing.values()),
        missing=[
            (tag("code", name), f"{number:,}", _treatment(job.data.columns, name))
            for name, number in sorted(missing.items(), key=lambda item: -item[1])
        ],
        job_file=dump_yaml(job),
    )


def headline_tiles(job: Job, summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(title, figure, note) of the four tiles at the top."""
    score, value = headline(summary)
    name = in_sentence(score)
    of = {"test": f"Test {name}", "train": f"Training {name}", "validation": f"Validation {name}"}.get(
        summary["metrics_of"], f"{score} of the last interval"
    )
    note = against_teacher(summary) or _scale(job, summary)
    batches = f"{plural(job.data.epochs, 'epoch')}, batches of {job.data.batch_size:,}"
    word = seconds_word(summary)
    cost_notes = (usd_per_billion(summary), usd_without(summary))
    return [
        (of, ratio(value), note),
        ("Samples", f"{summary['samples']:,}", batches),
        (f"Samples/s{word}", rate(summary["samples_per_s"]), f"in {duration(summary['seconds'])} of training{word}"),
        (f"Cost{word}", usd(summary["measured_usd"]), "; ".join(filter(None, cost_notes))),
    ]


def _scale(job: Job, summary: dict[str, Any]) -> str:
    """What the values of the first metric lie between, in words."""
    field = measures_in(summary)[0].field.rpartition("/")[2]
    classes = job.data.columns.all_labels[job.data.columns.label].num_scores
    chance = {"auc": "0.5", "accuracy": f"1 in {classes:,}"}.get(field)
    return f"{chance} is chance, 1 is perfect" if chance else "0 is perfect"


def _prices(job: Job, rented: set[str]) -> list[str]:
    return [
        f"{usd(resource.usd_per_hour)} for an hour of one {name}"
        for name, resource in job.cluster.resources.items()
        if name in rented
    ]


def _promise(plan: Plan, summary: dict[str, Any]) -> str:
    """What the predictions are for and rest on, in sentences."""
    basis = f" They are predicted from {summary['predicted_by']}." if "predicted_by" in summary else ""
    samples = f"Both columns are for the {summary['samples']:,} samples"
    if "plan" in summary:
        return f"The plan promises {promised(summary['plan'])} on its own units.{basis}"
    if follows_plan(summary) and plan.is_predicted:
        return f"{samples} that were trained on.{basis}"
    if summary["status"] != COMPLETED and plan.is_predicted:
        whole = f"take {duration(plan.hours * 3600)} and cost {usd(plan.usd)}"
        return f"{samples} trained so far; the whole job was predicted to {whole}.{basis}"
    return basis.strip()


def _charts(summary: dict[str, Any], metrics: Lines) -> list[Chart]:
    def series(field: str) -> list[tuple[float, float | None]]:
        return [(line["samples"], line.get(field)) for line in metrics]

    teacher, predicted = summary.get("teacher_auc"), summary["predicted_throughput"] or None
    references: dict[str, tuple[float | None, str]] = {
        "auc": (teacher, "teacher"),
        "rmse": (summary.get("teacher_rmse"), "teacher"),
        "calibration": (1.0, "calibrated"),
    }
    charts = [
        Chart(m.title, series(m.field), ratio, None, False, *references.get(m.field, (None, "")))
        for m in sorted(measures_in(metrics[-1]), key=lambda m: not m.is_loss)
    ]
    charts += _validation_charts(metrics)
    charts.append(
        Chart(f"Samples/s{seconds_word(summary)}", series("samples_per_s"), rate, None, True, predicted, "predicted")
    )
    if any(line.get("table_bytes") for line in metrics):  # a model without embeddings has no tables
        charts.append(Chart("Rows", series("rows"), _or_undefined("{:,.0f}".format), from_zero=True))
        charts.append(Chart("Table memory", series("table_bytes"), _or_undefined(size), size, from_zero=True))
    if any(line.get("staleness") for line in metrics):
        charts.append(Chart("Staleness", series("staleness"), _or_undefined("{:.3g}".format), from_zero=True))
    return charts


def _validation_charts(metrics: Lines) -> list[Chart]:
    """The curves of the validation: loss and the main figure, with the best value."""
    found = [(line["samples"], line["validation"]) for line in metrics if "validation" in line]
    if not found:
        return []
    best: dict[str, Any] = next((figures for _, figures in reversed(found) if figures["is_best"]), {})
    measures = sorted(measures_in(found[-1][1]), key=lambda m: not m.is_loss)
    return [
        Chart(
            f"Validation {measure.title if measure.title.isupper() else measure.title.lower()}",
            [(samples, figures.get(measure.field)) for samples, figures in found],
            ratio, None, False, best.get(measure.field), "best",
        )
        for measure in measures[:2]
    ]  # fmt: skip


def _mood(status: str) -> str:
    if status == DIVERGED:
        return "warning"
    return "good" if status in FINISHED else "open" if status in (UNFINISHED, RUNNING) else "warning"


def _metrics(summary: dict[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Heads and rows of the table of metrics."""
    of, train = summary["metrics_of"], summary.get("train") or {}
    heads = {"test": ["Test"], "validation": ["Validation"], "interval": ["Last interval"]}.get(of, [])
    rows = []
    for measure in measures_in(summary):
        value = summary.get(measure.field)
        figures = [measure.show(value)] if of != "train" else []
        figures += [measure.show(train.get(measure.field))] if train else []
        judged = tag("em", _sentence(verdict(measure, value, summary))) if value is not None else ""
        rows.append((measure.title, *figures, Markup("{} {}").format(judged, measure.meaning)))
    return ["", *heads, *(["Train"] if train else []), "What it means"], rows


def _treatment(schema: Schema, column: str) -> str:
    """What was done about missing values of a column."""
    if column in schema.dense:
        return "row skipped" if schema.dense_missing == "skip" else f"filled with {schema.dense_fill:g}"
    return "row skipped" if schema.slot_missing == "skip" else "given a key of its own"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _or_undefined(show: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: UNDEFINED if value is None else show(value)
