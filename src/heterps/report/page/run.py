"""The report of a run as one self-contained HTML page: no script, nothing loaded from anywhere, light and dark.

headline           what it trained to, in how long, for how much
prediction         what the plan promised beside what was measured
stages             of a run by a plan: what each did, and when
plan               layers by resource
charts             the course of training
metrics, data      the same as tables, with what they mean
job                everything that defined the run
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any

from heterps.config import Job, Schema
from heterps.planning.inline import cpu_resource
from heterps.planning.plan import Plan
from heterps.report.emulated import seconds_word
from heterps.report.figures import UNDEFINED, duration, plural, rate, ratio, usd
from heterps.report.meaning import (
    COMPLETED,
    UNFINISHED,
    against_teacher,
    compare,
    follows_plan,
    headline,
    measures_in,
    metrics_of,
    not_rented,
    promised,
    usd_per_billion,
    verdict,
)
from heterps.report.page.charts import Chart, draw
from heterps.report.page.stages import emulation_banner, stages_section
from heterps.report.terminal.profile_table import size
from heterps.report.terminal.share_chart import STYLE as SHARES_STYLE
from heterps.yamlfile import dump_yaml

NUM_COLOURS = 6


def render_run(job: Job, plan: Plan, summary: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    """The page. `summary` is summary.json, `metrics` the lines of metrics.jsonl, of which there may be none."""
    style = files("heterps.report.page").joinpath("run.css").read_text(encoding="utf-8") + SHARES_STYLE
    sections = [
        _headline(job, summary),
        emulation_banner(summary),
        _prediction(job, plan, summary),
        _plan(job, plan, summary),
        stages_section(plan, summary, metrics),
        _charts(job, summary, metrics),
        _metrics(summary),
        _data(job.data.columns, summary),
        f"<details><summary>Job file, defaults included</summary><pre>{escape(dump_yaml(job))}</pre></details>",
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(job.name)}: heterps run</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, sections))
        + "\n</main>\n</body>\n</html>\n"
    )


def _headline(job: Job, summary: dict[str, Any]) -> str:
    status = summary["status"]
    mood = {COMPLETED: "good", UNFINISHED: "open"}.get(status, "warning")
    score, value = headline(summary)
    name = score if score.isupper() else score.lower()
    of = {"test": f"Test {name}", "train": f"Training {name}"}.get(
        summary["metrics_of"], f"{score} of the last interval"
    )
    chance = f"1 in {job.data.columns.num_classes:,}" if score == "Accuracy" else "0.5"
    note = against_teacher(summary) or f"{chance} is chance, 1 is perfect"
    restarts = summary.get("restarts") or 0
    epochs = plural(job.data.epochs, "epoch")
    word = seconds_word(summary)
    tiles = [
        (of, ratio(value), note),
        ("Samples", f"{summary['samples']:,}", f"{epochs}, batches of {job.data.batch_size:,}"),
        (f"Samples/s{word}", rate(summary["samples_per_s"]), f"in {duration(summary['seconds'])} of training{word}"),
        (f"Cost{word}", usd(summary["measured_usd"]), usd_per_billion(summary)),
    ]  # fmt: skip
    cells = "".join(
        f'<div class="tile"><h3>{escape(title)}</h3><strong>{_figure(value)}</strong><p>{escape(note)}</p></div>'
        for title, value, note in tiles
    )
    resumed = f" Resumed {plural(restarts, 'time')}." if restarts else ""
    unfinished = " It has written no summary: it is still running, or was killed." if status == UNFINISHED else ""
    return (
        f'<header><p class="kind">heterps run</p><h1>{escape(job.name)} '
        f'<span class="status {mood}">{escape(status)}</span></h1>'
        f"<p>Model <code>{escape(job.model.factory)}</code>, trained on <code>{escape(_paths(job.data.train))}</code>."
        f'{resumed}{unfinished}</p></header>\n<div class="tiles">{cells}</div>'
    )


def _prediction(job: Job, plan: Plan, summary: dict[str, Any]) -> str:
    rows = [
        (c.title, "–" if c.predicted is None else c.show(c.predicted), c.show(c.measured), c.verdict)
        for c in compare(summary)
    ]
    is_given = job.plan is not None and not follows_plan(summary)  # for other machines: what ran is this one's cores
    rented = {cpu_resource(job.cluster)} if is_given else plan.units.keys()
    prices = [
        f"{usd(resource.usd_per_hour)} for an hour of one {name}"
        for name, resource in job.cluster.resources.items()
        if name in rented
    ]
    note = (
        "The error is of the prediction: measured over predicted, less one. Cost is what the units that ran cost while "
        f"they trained, at {', '.join(prices)}."
    )
    if is_given and "plan" in summary:
        note += f" The plan promises {promised(summary['plan'])} on its own units."
    elif follows_plan(summary) and plan.is_predicted:
        note += f" Both columns are for the {summary['samples']:,} samples that were trained on."
    elif summary["status"] != COMPLETED and plan.is_predicted:
        note += (
            f" Both columns are for the {summary['samples']:,} samples trained so far; the whole job was predicted to "
            f"take {duration(plan.hours * 3600)} and cost {usd(plan.usd)}."
        )
    table = _table(("", "Predicted", "Measured", "Error"), [tuple(map(escape, row)) for row in rows])
    of = ", of the emulated units" if seconds_word(summary) else ""
    return _section(f"Predicted and measured{of}", f'{table}<p class="note">{escape(note)}</p>')


def _plan(job: Job, plan: Plan, summary: dict[str, Any]) -> str:
    colours = {name: f"colour-{i % NUM_COLOURS}" for i, name in enumerate(job.cluster.resources)}
    bar, legend = [], []
    for stage in plan.stages:
        num_layers, colour = stage.last - stage.first + 1, colours.get(stage.resource, "colour-0")
        cells = "<i></i>" * num_layers
        bar.append(f'<div class="stage {colour}" style="flex-grow:{num_layers}">{cells}</div>')
        layers = f"layer {stage.first}" if num_layers == 1 else f"layers {stage.first} to {stage.last}"
        legend.append(f'<li><b class="{colour}"></b>{stage.count:,} × {escape(stage.resource)}: {layers}</li>')
    servers = plan.servers
    colour = colours.get(servers.resource, "colour-0")
    legend.append(
        f'<li><b class="{colour} ring"></b>{servers.count:,} × {escape(servers.resource)}: parameter servers</li>'
        if servers.count
        else "<li>No parameter servers: the tables are in the training process</li>"
    )
    return _section(
        "Plan",
        f'<div class="bar">{"".join(bar)}</div><ul class="legend">{"".join(legend)}</ul>'
        f'<p class="note">Each cell is a layer, in the order of the model. Made by method <code>{escape(plan.method)}'
        f"</code>; {_bottleneck(plan)}.{_optimality(plan)}{_launched(job, plan, summary)}</p>",
    )


def _launched(job: Job, plan: Plan, summary: dict[str, Any]) -> str:
    is_passed_over = job.plan is not None and not follows_plan(summary)
    return f" {escape(_sentence(not_rented(plan)))}" if is_passed_over else ""


def _bottleneck(plan: Plan) -> str:
    if not plan.is_predicted and plan.method != "inline":
        return "nothing is predicted"
    if not plan.is_predicted:
        return "the model could not be profiled, so it is one layer here and nothing is predicted"
    return f"what limits the throughput is {escape(plan.bottleneck)}"


def _optimality(plan: Plan) -> str:
    if plan.gap is None:
        return ""
    return f" It costs {plan.gap:.1%} more than the cheapest plan there is." if plan.gap else " No plan is cheaper."


def _charts(job: Job, summary: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    if not metrics:
        return _section("Course of training", '<p class="empty">No interval ended, so there is nothing to draw.</p>')

    def series(field: str) -> list[tuple[float, float | None]]:
        return [(line["samples"], line.get(field)) for line in metrics]

    teacher, predicted = summary.get("teacher_auc"), summary["predicted_throughput"] or None
    references: dict[str, tuple[float | None, str]] = {"auc": (teacher, "teacher"), "calibration": (1.0, "calibrated")}
    best, loss, *others = measures_in(metrics[-1])
    charts = [
        Chart(m.title, series(m.field), ratio, None, False, *references.get(m.field, (None, "")))
        for m in (loss, best, *others)
    ]
    charts.append(
        Chart(f"Samples/s{seconds_word(summary)}", series("samples_per_s"), rate, None, True, predicted, "predicted")
    )
    if any(line.get("table_bytes") for line in metrics):  # a model without embeddings has no tables
        charts.append(Chart("Rows", series("rows"), _count, from_zero=True))
        charts.append(Chart("Table memory", series("table_bytes"), _size, size, from_zero=True))
    if any(line.get("staleness") for line in metrics):
        charts.append(Chart("Staleness", series("staleness"), _staleness, from_zero=True))
    note = (
        "<aside><h3>How to read these</h3>"
        f"<p>Each point is an interval of about {job.metrics_every_samples:,} samples. Every sample was predicted "
        "before it was learned from: in the first epoch the curves tell how the model does on samples it has not seen."
        "</p>"
        "<p>The figure beside each name is that of the last interval; the whole run and the test set are in the table "
        "below. Rest the pointer on a line to read a value.</p></aside>"
    )
    return _section("Course of training", f'<div class="charts">{"".join(map(draw, charts))}{note}</div>')


def _metrics(summary: dict[str, Any]) -> str:
    of, train = summary["metrics_of"], summary.get("train") or {}
    heads = ["Test"] if of == "test" else ["Last interval"] if of == "interval" else []
    heads += ["Train"] if train else []
    rows = []
    for measure in measures_in(summary):
        value = summary.get(measure.field)
        figures = [ratio(value)] if of != "train" else []
        figures += [ratio(train.get(measure.field))] if train else []
        judged = f"<em>{escape(_sentence(verdict(measure, value, summary)))}</em> " if value is not None else ""
        rows.append((measure.title, *figures, f"{judged}{escape(measure.meaning)}"))
    note = f"Judged on the {metrics_of(summary)}."
    if of == "test" and train:
        note += " Train is the whole training stream, each sample predicted before it was learned from."
    table = _table(("", *heads, "What it means"), rows)
    return _section("Metrics", f'<div class="explained">{table}</div><p class="note">{note}</p>')


def _data(schema: Schema, summary: dict[str, Any]) -> str:
    counts = summary.get("data") or {}
    if not counts:
        return _section("Data", '<p class="empty">What was missing in the data is counted when a run ends.</p>')
    missing, skipped = counts.get("missing") or {}, counts.get("num_skipped") or 0
    total = f"{plural(counts.get('num_rows') or 0, 'row')} read, {skipped:,} skipped, "
    if follows_plan(summary):
        return _section("Data", f"<p>{total}what was missing in them is not counted where workers read.</p>")
    if not missing:
        return _section("Data", f"<p>{total}no value missing.</p>")
    rows = [
        (f"<code>{escape(name)}</code>", f"{number:,}", escape(_treatment(schema, name)))
        for name, number in sorted(missing.items(), key=lambda item: -item[1])
    ]
    return _section(
        "Data",
        f"<p>{total}{plural(sum(missing.values()), 'value')} missing in {plural(len(missing), 'column')}.</p>"
        f"<details{' open' if len(rows) <= 8 else ''}><summary>Missing values by column</summary>"
        f"{_table(('Column', 'Missing', 'What was done'), rows)}</details>",
    )


def _treatment(schema: Schema, column: str) -> str:
    if column in schema.dense:
        return "row skipped" if schema.dense_missing == "skip" else f"filled with {schema.dense_fill:g}"
    return "row skipped" if schema.slot_missing == "skip" else "given a key of its own"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    """Cells are HTML; the first of a row is its head."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'
        for first, *others in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _paths(paths: str | tuple[str, ...]) -> str:
    return paths if isinstance(paths, str) else ", ".join(paths)


def _figure(text: str) -> str:
    """A figure with its unit, which is set smaller."""
    number, _, unit = text.partition(" ")
    return f"{escape(number)} <small>{escape(unit)}</small>" if unit else escape(number)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _staleness(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.3g}"


def _count(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:,.0f}"


def _size(value: float | None) -> str:
    return UNDEFINED if value is None else size(value)
