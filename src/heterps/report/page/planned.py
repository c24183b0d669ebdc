"""A plan as a page shows it, in `heterps plan --html` and in the what-if page of `heterps ui`.

render_planned        the layers as a chain of stages, the bill by part, the bottleneck
render_next_plans     what the next cheaper and the next faster plan change
render_rivals         the policies and batch sizes that were compared
render_alternatives   the frontier: every point is a button that shows its plan (alternatives.py draws it)
render_searches       the methods that were compared, and how each searched
render_plan_page      all of them, as one file that loads nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup

from heterps.planning.api import Option, PlanComparison
from heterps.planning.bill import bill_parts
from heterps.planning.cost import Problem
from heterps.planning.explain import Neighbours, bottleneck, difference, layer_times, stations
from heterps.planning.frontier import Frontier
from heterps.planning.plan import Plan
from heterps.report.figures import duration, plural, rate, usd
from heterps.report.page.alternatives import draw_alternatives
from heterps.report.page.charts import Chart, Point, draw
from heterps.report.page.layer_chain import ChainLayer, ChainStage, colours_of
from heterps.report.page.templates import render, write_text
from heterps.report.terminal.frontier_view import chosen_for, points_meaning
from heterps.report.terminal.plan_explained import change_words, cheaper_words, faster_words
from heterps.report.terminal.plan_rented import rounded
from heterps.report.terminal.plan_table import standing


def render_planned(problem: Problem, plan: Plan) -> Markup:
    """The part of a page that shows one plan of the problem."""
    profile = problem.profile
    batch_s = profile.batch_size / plan.throughput
    parts = bill_parts(problem, plan)
    return _part(
        "planned.html.j2",
        figures=[
            ("Cost", usd(plan.usd), f"{standing(plan)}."),
            ("Samples/s", rate(plan.throughput), f"{rate(problem.throughput)} asked{_expected(problem, plan)}"),
            ("Time", duration(plan.hours * 3600), f"for {problem.samples * problem.epochs:,.0f} samples"),
            ("Units", f"{sum(plan.units.values()):,}", ", ".join(f"{n:,} {name}" for name, n in plan.units.items())),
        ],
        chain=_chain(problem, plan),
        batch=f"A batch of {profile.batch_size:,} samples takes {_milliseconds(batch_s)}{_lanes(problem, plan)}.",
        bottleneck=plan.bottleneck,
        bill=[
            (
                part.name,
                "" if part.count is None else f"{part.count:,}",
                "" if part.usd_per_hour is None else usd(part.usd_per_hour),
                usd(part.usd),
                f"{part.usd / plan.usd:.0%}" if plan.usd else "",
            )
            for part in parts
        ],
        is_real=problem.conditions is not None,
        estimated=", ".join(name for name in profile.resources if name in plan.estimated),
    )


def render_next_plans(problem: Problem, plan: Plan, beside: Neighbours) -> Markup:
    """The part of a page that tells what the plans next to this one change."""
    cheaper = beside.cheaper
    return _part(
        "next_plans.html.j2",
        cheaper_title="Beaten by" if cheaper is not None and cheaper.meets_floor else "Next cheaper",
        cheaper=cheaper_words(cheaper, plan, problem.profile),
        faster=faster_words(beside.faster, plan, problem.profile),
    )


def render_rivals(rows: Sequence[dict[str, Any]]) -> Markup:
    """The part of a page with the variants that were compared, see `cheapest_variant`; nothing if there is but one."""
    return _part("rivals.html.j2", rivals=[_rival(row) for row in rows]) if len(rows) > 1 else Markup()


def render_alternatives(problem: Problem, plan: Plan, frontier: Frontier) -> Markup:
    """The part of a page that shows the frontier, and of its plans the one that the reader chooses.

    `plan` is the chosen one, which other plans are compared with. The plan for the floor is shown first.
    """
    first = chosen_for(frontier.plans, problem.throughput) or frontier.plans[-1]
    return _part(
        "alternatives.html.j2",
        meaning=points_meaning(frontier),
        asked=f"{problem.throughput:,.0f} samples/s asked",
        drawn=draw_alternatives(frontier.plans, first, problem.throughput),
        plans=[
            {
                "chain": _chain(problem, other),
                "bill": f"{usd(other.usd)}, {rate(other.throughput)} samples/s, {duration(other.hours * 3600)}",
                "change": _change(problem, plan, other),
                "bottleneck": other.bottleneck,
            }
            for other in frontier.plans
        ],
    )


def render_searches(compared: PlanComparison) -> Markup:
    """The part of a page with the plans of the methods, and how each came to its own; nothing if none was compared."""
    chosen, options = compared.chosen, compared.options
    return _part(
        "searches.html.j2",
        methods=[_method(option) for option in options],
        searches=[_search(option, chosen) for option in options if option.trace],
    ) if options else Markup()  # fmt: skip


def render_plan_page(
    problem: Problem,
    compared: PlanComparison,
    beside: Neighbours,
    frontier: Frontier,
    rivals: Sequence[dict[str, Any]] = (),
) -> str:
    """The page in one file. `rivals` are the policies and batch sizes that were compared, see `cheapest_variant`."""
    chosen = compared.chosen
    return render(
        "plan.html.j2",
        model=problem.profile.model,
        method=chosen.method,
        policy=chosen.sync,
        planned=render_planned(problem, chosen),
        next_plans=render_next_plans(problem, chosen, beside),
        alternatives=render_alternatives(problem, chosen, frontier),
        rivals=render_rivals(rivals),
        searches=render_searches(compared),
    )


def write_plan_page(path: Path, page: str) -> None:
    """Writes the page. Raises StorageError when the file cannot be written."""
    write_text(path, page, "page")


def _part(template: str, **values: Any) -> Markup:
    return Markup(render(template, **values))  # its values are escaped


def _chain(problem: Problem, plan: Plan) -> list[ChainStage]:
    colours = colours_of(problem.cluster.resources)
    found = stations(problem, plan)
    limit = bottleneck(found, plan)
    slowest_s = max(max(station.compute_s, station.comm_s) for station in found)
    chain = []
    for number, station in enumerate(found):
        layers: list[ChainLayer] = []
        if number < len(plan.stages):
            stage = plan.stages[number]
            for layer, times in enumerate(layer_times(problem, stage), stage.first):
                seconds = times[0] if station.side == "compute" else times[1]
                told = f"{_milliseconds(times[0])} of compute, {_milliseconds(times[1])} of communication"
                name = problem.profile.layers[layer].name
                layers.append(ChainLayer(name, _milliseconds(seconds), told, seconds / slowest_s if slowest_s else 0.0))
        busy_s = max(station.compute_s, station.comm_s)
        title = f"{station.count:,} × {station.resource}"
        chain.append(
            ChainStage(
                colours[station.resource],
                title if layers else f"{title}: servers",
                tuple(layers),
                f"{_milliseconds(busy_s)} of {station.side}" if layers else _milliseconds(busy_s),
                station is limit,
            )
        )
    return chain


def _milliseconds(seconds: float) -> str:
    """A time with three digits that matter, or whole milliseconds: 0.0042 ms, 31.2 ms, 1,204 ms."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def _expected(problem: Problem, plan: Plan) -> str:
    if plan.prediction is None:
        return ""
    _, low, high = plan.prediction.throughput(problem.profile.batch_size)
    return f"; {rounded(low)} to {rounded(high)} expected in 9 of 10 runs"


def _lanes(problem: Problem, plan: Plan) -> str:
    if plan.lanes is None:
        return ""
    if not problem.in_rounds:
        return f"; {plan.lanes:,} batch{'es are' if plan.lanes > 1 else ' is'} under way"
    return f", in {plan.lanes:,} micro-batch{'es' if plan.lanes > 1 else ''}"


def _change(problem: Problem, plan: Plan, other: Plan) -> str:
    if (other.stages, other.servers) == (plan.stages, plan.servers):
        return "This is the chosen plan."
    told = difference(problem, plan, other)
    assert told is not None
    more = f"{usd(abs(told.usd))} {'less' if told.usd < 0 else 'more'}"
    return f"Beside the chosen plan: {change_words(told, problem.profile)}; {more}."


# --- the search ------------------------------------------------------------------------------------------------------


def _rival(row: dict[str, Any]) -> tuple[str, ...]:
    name = f"{row['sync'] or 'batches divided'}, batches of {row['batch_size']:,}"
    if row["usd"] is None:
        return name, "", "", "", row["reason"]
    stale = "" if row["staleness"] is None else f"gradients {plural(round(row['staleness']), 'update')} old"
    return name, rate(row["throughput"]), duration(row["hours"] * 3600), usd(row["usd"]), stale


def _method(option: Option) -> tuple[str, ...]:
    plan = option.plan
    if plan is None:
        return option.method, "", "", "", "", option.reason
    gap = "not known" if plan.gap is None else "the cheapest" if plan.gap == 0 else f"{plan.gap:.1%} above the cheapest"
    return option.method, usd(plan.usd), rate(plan.throughput), f"{plan.evaluations:,}", duration(plan.search_s), gap


def _search(option: Option, chosen: Plan) -> Markup:
    """The least cost that a method knew, over the number of schedules that it had billed."""
    points: list[Point] = [(option.trace[0].evaluations, option.trace[0].usd)]
    for before, after in pairwise(option.trace):
        points += [(after.evaluations, before.usd), (after.evaluations, after.usd)]
    last = option.plan.evaluations if option.plan is not None else 0
    points.append((max(last, option.trace[-1].evaluations), option.trace[-1].usd))
    return draw(
        Chart(
            option.method, points, usd, from_zero=True, x_name="schedules billed", reference=chosen.usd,
            reference_name="chosen",
        )
    )  # fmt: skip
