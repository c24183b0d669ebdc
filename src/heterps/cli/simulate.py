"""`heterps simulate`: workers of any speeds over a policy, or a plan over spot capacity, on a simulated clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.measured import advise_measured, measured_options
from heterps.cli.output import check_folders, examples, print_json
from heterps.cli.simulated import read_policies, read_scenario, read_window
from heterps.config import PolicyConfig
from heterps.errors import ConfigError, StorageError
from heterps.report.terminal.consoles import make_console

if TYPE_CHECKING:
    from heterps.sim import Scenario, SimResult

EXAMPLES = examples(
    "heterps simulate --workers 1.0,2.3 --mode dssp --lower 3 --spread 12 --horizon 1000",
    "heterps simulate --workers 8x1.0,2.3 --jitter 0.1 --horizon 1000 --compare bsp,asp,ssp:3,dssp:3:12",
    "heterps simulate --scenario scenario.yaml --mode bsp+backup:1 --window 90:130 --html simulation.html",
    "heterps simulate --workers 1.0,2.3 --mode dssp --lower 3 --spread 12 --horizon 1000 --seed 0 --json",
    "heterps simulate --job job.yaml --workers 4x1.0 --compare bsp,asp,ssp:3,dssp:3:12 --target 0.95 --seeds 3",
    "heterps simulate --job job.yaml --workers 1.0,2.5 --advise --html policies.html",
    "heterps simulate --spot generated --plan plan.json --cluster cluster.yaml --seeds 100",
    "heterps simulate --spot trace.csv --plan plan.json --cluster cluster.yaml --json",
    "heterps simulate --from runs/ctr --advise",
)


def simulate(
    context: typer.Context,
    workers: Annotated[
        str | None,
        typer.Option(help="Seconds an iteration of each worker takes, with --job a whole batch: 1.0,2.3 or 8x1.0,2.3."),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            help="A scenario file: workers, jitter, slow-downs, deaths, joins, server, latency. Options go before it."
        ),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="RUN", help="Take the workers, and how long each of their iterations took, from a run."
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="bsp, asp, ssp or dssp; or in short as with --compare. dssp if left out.")
    ] = None,
    lower: Annotated[int | None, typer.Option(help="ssp, dssp: lead up to which nobody waits; 3 if left out.")] = None,
    spread: Annotated[
        int | None, typer.Option(help="dssp: most extra iterations granted at once; 12 if left out.")
    ] = None,
    predictor: Annotated[str | None, typer.Option(help="dssp: last, ema or elapsed; last if left out.")] = None,
    grant: Annotated[
        str | None, typer.Option(help="dssp: who may be granted more, all or fastest; all if left out.")
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(
            help="dssp: a waiting worker goes on at the next push of the slowest, or at lower; next if left out."
        ),
    ] = None,
    hysteresis: Annotated[
        int | None,
        typer.Option(help="dssp: with --release lower, a waiting worker goes on at a lead of lower less this."),
    ] = None,
    backup: Annotated[
        int | None, typer.Option(help="bsp: number of slowest workers that a round does not wait for.")
    ] = None,
    literal: Annotated[
        bool, typer.Option("--literal", help="dssp: as it was printed, which bounds no lead. To compare with.")
    ] = False,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare instead of --mode: bsp,asp,ssp:3,dssp:3:12. With --job also bsp+fitted, "
            "bsp+summed, asp+damped, asp+compensated:0.04 and the like."
        ),
    ] = None,
    horizon: Annotated[float | None, typer.Option(help="Seconds until it ends.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations after which a worker is done.")] = None,
    jitter: Annotated[
        float | None, typer.Option(help="Deviation of an iteration's seconds, as a part of them.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the jitter; 0 if left out. With --job of all that is random, and the job's."),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(
            help="Train this job for real on the simulated clock, and compare the policies by what they reach. "
            "Without --compare those that are worth it on these workers."
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="--job: AUC, accuracy, or R² of numbers, that is to be reached; 0.99 of what all reach if left out."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="--job: number of seeds to train with; 1 if left out. --from with --advise: 5. --spot: number of "
            "traces, or of times at which the job begins; 100, or 1 with a file.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="--job: passes over the data, instead of the job's.")
    ] = None,
    points: Annotated[int | None, typer.Option(min=1, help="--job: evaluations of a run; 40 if left out.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="--job: runs at a time; one for each core if left out.")
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="--job, --from: say which policy to take here, and why.")
    ] = False,
    spot: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE",
            help="Play a plan over a trace of spot capacity, a CSV or JSON file; generated: all spot units of a "
            "resource go at once; independent: one by one.",
        ),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="--spot: the plan, as `heterps plan --out` wrote it.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="--spot: the cluster file that it was planned for.")] = None,
    window: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="What part of the time the timeline shows, in seconds.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write every input and decision of the policy to this file of JSON lines.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the timeline to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with everything to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Play workers of given speeds over a policy on a simulated clock, before any of them is rented.

    The same seed gives the same run, and the n-th iteration of a worker takes as long under every policy. With --job
    every worker computes real gradients with the weights it would have had. With --spot a plan is played instead, while
    its spot units are taken back and come again: hours, USD and lost time against what was predicted.
    """
    if spot is not None or plan is not None or cluster is not None:
        _play_spot(context, spot, plan, cluster, seed=seed or 0, seeds=seeds, as_json=json)
        return
    from heterps.report.page.simulation import write_page, write_svg
    from heterps.report.terminal.simulation_table import show_policies, show_simulation

    check_folders(trace=trace, picture=svg, page=html)
    if compare is not None and (svg is not None or trace is not None):
        raise ConfigError("--svg and --trace are of one policy: leave out --compare, or use --html for a page of all.")
    virtual: dict[str, Any] = {
        "target": target, "seeds": seeds, "epochs": epochs, "points": points, "processes": processes,
        "advise": advise or None,
    }  # fmt: skip
    is_advised_by_run = from_run is not None and job is None and advise
    fits = ("seeds", "advise") if is_advised_by_run else ()
    lone = [f"--{name}" for name, value in virtual.items() if value is not None and name not in fits]
    if job is None and lone:
        raise ConfigError(f"{', '.join(lone)}: only with --job FILE, which says what is trained.")
    if target is not None and not 0 < target <= 1:
        raise ConfigError(f"--target {target:g}: AUC, accuracy and R² are parts of one, as in 0.95.")
    given = {"workers": workers, "horizon_s": horizon, "iterations": iterations, "jitter": jitter, "seed": seed}
    given = {name: value for name, value in given.items() if value is not None}
    if from_run is not None:
        has_end = bool(job or scenario or horizon or iterations)
        measured, given = measured_options(from_run, given, has_end=has_end, has_job=job is not None)
    played = read_scenario(scenario, given, ends_by_itself=job is not None)
    options = {
        "lower": lower, "spread": spread, "predictor": predictor, "grant": grant, "release": release,
        "hysteresis": hysteresis, "backup": backup, "literal": literal or None,
    }  # fmt: skip
    options = {name: value for name, value in options.items() if value is not None}
    if job is not None:
        from heterps.cli.virtual import train

        unfit = {"mode": mode, **options, "window": window, "trace": trace, "svg": svg}
        if flags := [f"--{name}" for name, value in unfit.items() if value is not None]:
            raise ConfigError(f"{', '.join(flags)}: not with --job. Name the policies with --compare, as dssp:3:12.")
        train(
            job, played, compare, target=target, seeds=seeds or 1, epochs=epochs, points=points, processes=processes,
            wants_advice=advise, html=html, as_json=json,
        )  # fmt: skip
        return
    if is_advised_by_run:
        unfit = {"mode": mode, **options, "window": window, "trace": trace, "svg": svg, "html": html}
        if flags := [f"--{name}" for name, value in unfit.items() if value is not None]:
            raise ConfigError(f"{', '.join(flags)}: not with --advise. Name the policies with --compare, as dssp:3:12.")
        advise_measured(measured, played, compare, seeds=seeds, as_json=json)
        return
    policies = read_policies(mode or "dssp", compare, options)
    shown = read_window(window, played)
    keep = shown if html or svg or not (json or compare) else None
    results = [_run(played, policy, keep, trace) for policy in policies]
    if json:
        found = [result.as_json() for result in results]
        print_json(found[0] if compare is None else {"policies": found})
    elif compare is not None:
        show_policies(make_console(), results)
    else:
        show_simulation(make_console(), results[0])
    if svg is not None:
        write_svg(svg, results[0])
    if html is not None:
        write_page(html, results)


def _play_spot(
    context: typer.Context,
    trace: str | None,
    plan: Path | None,
    cluster: Path | None,
    *,
    seed: int,
    seeds: int | None,
    as_json: bool,
) -> None:
    """Play a plan over spot capacity. Raises ConfigError for options that have nothing to do with it."""
    from heterps.cli.spot import play_spot

    if trace is None:
        raise ConfigError("--plan and --cluster: only with --spot TRACE, which says when there are spot units.")
    known = {"spot", "plan", "cluster", "seed", "seeds", "json"}
    unfit = [
        option.opts[0]
        for option in context.command.params
        if option.name not in known and context.params.get(option.name or "") not in (None, False)
    ]
    if unfit:
        raise ConfigError(f"{', '.join(unfit)}: not with --spot, which plays a plan and no policy.")
    play_spot(trace, plan, cluster, seed=seed, seeds=seeds, as_json=as_json)


def _run(scenario: Scenario, policy: PolicyConfig, window: tuple[float, float] | None, trace: Path | None) -> SimResult:
    from heterps.report.terminal.progress import show_simulation_progress
    from heterps.sim import Simulator
    from heterps.sync import record

    with show_simulation_progress(make_console(stderr=True), scenario, policy.label) as tell:
        simulator = Simulator(scenario, policy, window=window, on_progress=tell)
        if trace is None:
            return simulator.run()
        try:
            with trace.open("w", encoding="utf-8") as file:
                record(simulator.policy, file)
                return simulator.run()
        except OSError as error:
            raise StorageError(f"{trace}: cannot write the trace: {error.strerror}. Name another file.") from None
