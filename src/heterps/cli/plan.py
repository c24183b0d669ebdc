"""`heterps plan`: the cheapest plan that is fast enough, beside what every other method would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.output import check_folders, examples, print_json, write_file
from heterps.config import load_cluster
from heterps.report.terminal.consoles import make_console

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from heterps.planning import PlanComparison
    from heterps.planning.cost import Problem
    from heterps.planning.explain import Explanation
    from heterps.planning.frontier import Frontier
    from heterps.planning.plan import Plan

PLAN_S, COMPARE_S = 60.0, 10.0
MEASURED = {"trials", "trial_seconds", "launcher", "emulate", "profile_out"}
NOT_MEASURED = {
    "batch_size", "provisioner", "compare", "frontier", "plot", "html", "explain", "cost", "max_staleness",
    "dense",
}  # fmt: skip
EXAMPLES = examples(
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9",
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --out plan.json",
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --compare --explain",
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --frontier --plot frontier.html",
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --compare --html plan.html",
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --method greedy --json",
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --sync any --rows 1e8",
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --rows 1e10 --rows-in-memory 0.05",
    "heterps plan profile.json cluster.yaml --throughput 20000 --samples 1e9 --sync asp --max-staleness 15",
    "heterps plan profile.json cluster.yaml --deadline 12 --samples 1e9 --sync bsp --batch-size 1024,4096",
    "heterps plan --measure job.yaml --throughput 20000 --emulate --out plan.json --profile-out corrected.json",
    note="Exit code 3: there is no plan; the error says which constraint binds and what would relax it.",
)


def plan(
    context: typer.Context,
    throughput: Annotated[
        float | None, typer.Option(help="Least samples a second; with --deadline it may be left out.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Argument(metavar="PROFILE", help="The profile, made by `heterps profile`; --measure: the job's."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Argument(metavar="CLUSTER", help="The cluster file: resources, prices, limits; --measure: the job's."),
    ] = None,
    samples: Annotated[
        float | None, typer.Option(help="Samples of the data, once through; --measure: the job's.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data: 1; --measure: the job's.")] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            help="Plan for batches of this size instead of the profiled one; of several (1024,4096) the cheapest."
        ),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(
            help="The policy of the job: bsp, asp, ssp:3, dssp:3:12; any: the cheapest of them. Default: with a real "
            "bill that of the job that was profiled; with that of the paper a batch is divided as it has it."
        ),
    ] = None,
    cost: Annotated[
        str, typer.Option(help="The bill: paper, real (all that is known of machines), or auto: real where asked for.")
    ] = "auto",
    rows: Annotated[float | None, typer.Option(help="Rows expected in all tables, which servers must hold.")] = None,
    rows_in_memory: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Share of the rows in memory of servers; others are on disk. By default as the job says."
        ),
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Largest expected hours, with start-up and interruptions.")
    ] = None,
    lanes: Annotated[
        str | None, typer.Option(help="With bsp: numbers of micro-batches to choose from, such as 4,8,16.")
    ] = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(min=0, help="With asp, ssp and dssp: largest expected staleness of gradients, in updates."),
    ] = None,
    dense: Annotated[
        str | None,
        typer.Option(help="With bsp: how weights are kept in step, servers or all_reduce; that of the profiled job."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="exact (the default), rl, rl-scratch, rl-rnn, rl-paper, changes, brute, greedy, genetic, bayes, "
            "heuristic, cpu, gpu or that of a plugin; --measure: rl (the default), rl-scratch, rl-rnn or changes."
        ),
    ] = None,
    provisioner: Annotated[str, typer.Option(help="exact, newton, sta-ratio or sta-ps-ratio.")] = "exact",
    seed: Annotated[int, typer.Option(min=0, help="Seed of methods that draw at random.")] = 0,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Longest search: 60, and 10 a method with --compare.")
    ] = None,
    evaluations: Annotated[int | None, typer.Option(min=1, help="Most schedules that a search bills.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Search with every method and compare.")] = False,
    frontier: Annotated[bool, typer.Option("--frontier", help="Show the least cost for other throughputs.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the frontier to this .svg or .html file; with --compare every method's plan too."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with the plan, its bill and what is cheaper or faster to this file."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what limits the plan, and what its cost hangs on.")
    ] = False,
    measure: Annotated[
        Path | None,
        typer.Option(metavar="JOB", help="Try the plans of a search with this job, and go by what that measures."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="--measure: largest number of trials.")] = 8,
    trial_seconds: Annotated[
        float, typer.Option(min=0, help="--measure: how long a trial measures, after its warm-up.")
    ] = 5.0,
    launcher: Annotated[str | None, typer.Option(help="--measure: where trials run, local or ray.")] = None,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="--measure: emulate the units of the plans, by the job's profile.")
    ] = False,
    profile_out: Annotated[
        Path | None, typer.Option(help="--measure: write the corrected profile to this file.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """Plan which layers run on which resources, and how many units and servers that takes, for the least money."""
    from heterps.cli.plan_variants import variants
    from heterps.planning.variants import cheapest_variant
    from heterps.profiling.profile import load_profile
    from heterps.report.page.frontier import check_plot, write_plot

    _check_options(context, is_measured=measure is not None)
    if measure is not None:
        from heterps.cli.measure import measure_plans

        if throughput is None and deadline is None:
            context.fail("Missing option '--throughput', or '--deadline'.")
        return measure_plans(
            measure, profile, cluster, throughput=throughput, samples=samples, epochs=epochs, launcher=launcher,
            sync=sync, lanes=lanes, rows=rows, rows_in_memory=rows_in_memory, deadline=deadline,
            emulate=emulate, trials=trials, trial_seconds=trial_seconds, out=out, profile_out=profile_out, json=json,
            method=method or "rl", seed=seed, evaluations=evaluations,
            seconds=seconds if seconds is not None else PLAN_S,
        )  # fmt: skip
    if profile is None or cluster is None:
        context.fail(f"Missing argument '{'PROFILE' if profile is None else 'CLUSTER'}'.")
    if samples is None:
        context.fail("Missing option '--samples'.")
    if throughput is None and deadline is None:
        context.fail("Missing option '--throughput', or '--deadline'.")
    if plot is not None:
        check_plot(plot)
    check_folders(plot=plot, page=html, plan=out)
    profiled = load_profile(profile)
    profiled_with = profiled.batch_size
    options: dict[str, Any] = {
        "method": method or "exact", "provisioner": provisioner, "seed": seed, "evaluations": evaluations,
        "seconds": seconds if seconds is not None else COMPARE_S if compare else PLAN_S,
    }  # fmt: skip
    tried = variants(
        profiled, load_cluster(cluster), throughput, samples, 1 if epochs is None else epochs,
        batch_sizes=batch_size, sync=sync, cost=cost, rows=rows, rows_in_memory=rows_in_memory, deadline=deadline,
        lanes=lanes, max_staleness=max_staleness, dense=dense,
    )  # fmt: skip
    problem, compared, rivals = cheapest_variant(
        tried, deadline, lambda one: _search(one, options, every=compare, alone=json and html is None)
    )
    told = _explain(problem, compared.chosen) if explain else None
    computed = _frontier(problem) if frontier or plot is not None or html is not None else None
    found = computed if frontier or plot is not None else None
    if json:
        print_json(_as_json(compared, compare, told, found) | ({"variants": rivals} if len(rivals) > 1 else {}))
    else:
        _show(problem, compared, compare, told, found, profiled_with, rivals, deadline)
    if plot is not None and found is not None:
        write_plot(plot, found, problem.profile, problem.throughput, compared if compare else None)
    if html is not None and computed is not None:
        _write_page(html, problem, compared, computed, rivals)
    write_file(out, "plan", compared.chosen.write)
    return 0


def _check_options(context: typer.Context, *, is_measured: bool) -> None:
    """Raises a usage error where an option has no meaning with --measure, or without it."""
    strange = NOT_MEASURED if is_measured else MEASURED
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in strange and source is not None and source.name == "COMMANDLINE":
            context.fail(f"{option.opts[0]} is {'not for' if is_measured else 'for'} --measure.")


def _search(problem: Problem, options: dict[str, Any], *, every: bool, alone: bool) -> PlanComparison:
    """Plans by `every` method; or by the method asked for, beside the quick ones unless it is wanted `alone`."""
    from heterps.planning import compare

    if every:
        with _progress("searching by") as announce:
            return compare(problem, others="all", on_start=announce, **options)
    return compare(problem, others="none" if alone else "quick", **options)


def _explain(problem: Problem, plan: Plan) -> Explanation:
    from heterps.planning.explain import explain

    with _progress("explaining", only_terminal=True) as announce:
        announce(f"the plan of {plan.method}")
        return explain(problem, plan)


def _frontier(problem: Problem) -> Frontier:
    from heterps.planning.frontier import frontier

    with _progress("frontier at", only_terminal=True) as announce:
        return frontier(problem, on_point=lambda plan: announce(f"{plan.throughput:,.0f} samples/s"))


def _write_page(
    path: Path,
    problem: Problem,
    compared: PlanComparison,
    found: Frontier,
    rivals: list[dict[str, Any]],
) -> None:
    from heterps.planning.explain import neighbours
    from heterps.report.page.planned import render_plan_page, write_plan_page

    beside = neighbours(problem, compared.chosen)
    write_plan_page(path, render_plan_page(problem, compared, beside, found, rivals))


def _progress(what: str, *, only_terminal: bool = False) -> AbstractContextManager[Callable[[str], None]]:
    from heterps.report.terminal.progress import show_progress

    return show_progress(make_console(stderr=True), what, only_terminal=only_terminal)


def _show(
    problem: Problem,
    compared: PlanComparison,
    every: bool,
    told: Explanation | None,
    found: Frontier | None,
    profiled_with: int,
    rivals: list[dict[str, Any]],
    deadline: float | None,
) -> None:
    from heterps.report.terminal.frontier_view import show_frontier
    from heterps.report.terminal.plan_explained import show_explanation
    from heterps.report.terminal.plan_rented import show_expected, show_reached, show_rented, show_variants
    from heterps.report.terminal.plan_table import show_comparison, show_every_method

    console = make_console()
    profile, floor = problem.profile, problem.throughput
    if profile.batch_size != profiled_with:
        console.print(f"For batches of {profile.batch_size:,} samples (profiled with {profiled_with:,}).")
    if deadline is not None:
        console.print(f"To be done within {deadline:g} hours it needs {floor:,.0f} samples/s, start-up included.")
    if len(rivals) > 1:
        show_variants(console, rivals)
    (show_every_method if every else show_comparison)(console, compared, profile, floor)
    show_reached(console, problem)
    show_rented(console, problem, compared.chosen)
    show_expected(console, compared.chosen, profile.batch_size)
    if told is not None:
        show_explanation(console, told, compared.chosen, profile, floor)
    if found is not None:
        console.print()
        show_frontier(console, found, profile, floor)


def _as_json(compared: PlanComparison, every: bool, told: Explanation | None, found: Frontier | None) -> dict[str, Any]:
    """The plan, or with every method `chosen` and `options`; also `explain` and `frontier` where asked for."""
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
    return shown
