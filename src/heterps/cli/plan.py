"""`heterps plan`: the cheapest plan that is fast enough, beside what every other method would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.places import check_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from heterps.planning import Comparison
    from heterps.planning.cost import Problem
    from heterps.planning.explain import Explanation
    from heterps.planning.frontier import Frontier
    from heterps.planning.plan import Plan

PLAN_S, COMPARE_S = 60.0, 10.0
EXAMPLES = """
Examples:

  heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9

  heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --out plan.json

  heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --compare --explain

  heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --frontier --plot frontier.html

  heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --method greedy --json

Exit code 3: there is no plan; the error says which constraint binds and what would relax it.
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(plan)


def plan(
    profile: Annotated[
        Path, typer.Argument(metavar="PROFILE", help="The profile, made by `heterps profile`.", show_default=False)
    ],
    cluster: Annotated[
        Path, typer.Argument(metavar="CLUSTER", help="The cluster file: resources, prices, limits.", show_default=False)
    ],
    throughput: Annotated[float, typer.Option(help="Least samples a second.", show_default=False)],
    samples: Annotated[float, typer.Option(help="Samples of the data, once through.", show_default=False)],
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = 1,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Plan for batches of this size instead of the profiled one.", show_default=False),
    ] = None,
    method: Annotated[
        str, typer.Option(help="exact, rl, rl-rnn, brute, greedy, genetic, bayes, heuristic, cpu or gpu.")
    ] = "exact",
    provisioner: Annotated[str, typer.Option(help="exact, newton, sta-ratio or sta-ps-ratio.")] = "exact",
    seed: Annotated[int, typer.Option(min=0, help="Of methods that draw at random.")] = 0,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Longest search: 60, and 10 a method with --compare.", show_default=False),
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option(min=1, help="Most schedules that a search bills.", show_default=False)
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Search with every method and compare.")] = False,
    frontier: Annotated[bool, typer.Option("--frontier", help="Show the least cost for other throughputs.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the frontier to this .svg or .html file.", show_default=False)
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what limits the plan, and what its cost hangs on.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Plan which layers run on which resources, and how many units and servers that takes, for the least money."""
    from heterps.config import load_cluster
    from heterps.errors import StorageError
    from heterps.planning.cost import Problem
    from heterps.profiling.profile import load_profile
    from heterps.report.frontier_page import check_plot, write_plot

    if plot is not None:
        check_plot(plot)
        check_folder(plot, "plot")
    if out is not None:
        check_folder(out, "plan")
    profiled = load_profile(profile)
    profiled_with = profiled.batch_size
    if batch_size is not None:
        profiled = profiled.at_batch_size(batch_size)
    problem = Problem(profiled, load_cluster(cluster), throughput, samples, epochs)
    options: dict[str, Any] = {
        "method": method, "provisioner": provisioner, "seed": seed, "evaluations": evaluations,
        "seconds": seconds if seconds is not None else COMPARE_S if compare else PLAN_S,
    }  # fmt: skip
    compared = _search(problem, options, every=compare, alone=json)
    told = _explain(problem, compared.chosen) if explain else None
    found = _frontier(problem) if frontier or plot is not None else None
    if json:
        typer.echo(_as_json(compared, compare, told, found))
    else:
        _show(problem, compared, compare, told, found, profiled_with)
    if plot is not None and found is not None:
        write_plot(plot, found, problem.profile, throughput)
    if out is not None:
        try:
            compared.chosen.write(out)
        except OSError as error:
            raise StorageError(f"{out}: cannot write the plan: {error.strerror}. Name another file.") from None


def _search(problem: Problem, options: dict[str, Any], *, every: bool, alone: bool) -> Comparison:
    """By `every` method; or by the method asked for, beside the quick ones unless it is wanted `alone`."""
    from heterps import planning

    inputs = (problem.given, problem.cluster)
    options |= {"throughput": problem.throughput, "samples": problem.samples, "epochs": problem.epochs}
    if every:
        with _progress("searching by") as announce:
            return planning.compare(*inputs, every=True, on_start=announce, **options)
    if alone:
        return planning.Comparison(planning.plan(*inputs, **options), ())
    return planning.compare(*inputs, **options)


def _explain(problem: Problem, plan: Plan) -> Explanation:
    from heterps.planning.explain import explain

    with _progress("explaining", only_terminal=True) as announce:
        announce(f"the plan of {plan.method}")
        return explain(problem, plan)


def _frontier(problem: Problem) -> Frontier:
    from heterps.planning.frontier import frontier

    with _progress("frontier at", only_terminal=True) as announce:
        return frontier(problem, on_point=lambda plan: announce(f"{plan.throughput:,.0f} samples/s"))


def _progress(what: str, *, only_terminal: bool = False) -> AbstractContextManager[Callable[[str], None]]:
    from heterps.report.consoles import make_console
    from heterps.report.planning_progress import show_progress

    return show_progress(make_console(stderr=True), what, only_terminal=only_terminal)


def _show(
    problem: Problem,
    compared: Comparison,
    every: bool,
    told: Explanation | None,
    found: Frontier | None,
    profiled_with: int,
) -> None:
    from heterps.report.comparison_table import show_every_method
    from heterps.report.consoles import make_console
    from heterps.report.frontier_view import show_frontier
    from heterps.report.plan_explained import show_explanation
    from heterps.report.plan_table import show_comparison

    console = make_console()
    profile, floor = problem.profile, problem.throughput
    if profile.batch_size != profiled_with:
        console.print(f"For batches of {profile.batch_size:,} samples (profiled with {profiled_with:,}).")
    (show_every_method if every else show_comparison)(console, compared, profile, floor)
    if told is not None:
        show_explanation(console, told, compared.chosen, profile, floor)
    if found is not None:
        console.print()
        show_frontier(console, found, profile, floor)


def _as_json(compared: Comparison, every: bool, told: Explanation | None, found: Frontier | None) -> str:
    """The plan, or with every method `chosen` and `options`; `explain` and `frontier` beside it where asked for."""
    import json
    from dataclasses import asdict

    def fields(plan: Plan) -> dict[str, Any]:
        return plan.model_dump(mode="json", exclude_none=True)

    shown: dict[str, Any] = fields(compared.chosen)
    if every:
        options = [
            {
                "method": option.method,
                "plan": fields(option.plan) if option.plan else None,
                "reason": option.reason,
                "trace": [asdict(point) for point in option.trace],
            }
            for option in compared.options
        ]
        shown = {"chosen": shown, "options": options}
    if told is not None:
        shown["explain"] = told.as_json()
    if found is not None:
        shown["frontier"] = {"complete": found.complete, "plans": [fields(plan) for plan in found.plans]}
    return json.dumps(shown)
