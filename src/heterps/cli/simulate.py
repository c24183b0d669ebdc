"""`heterps simulate`: workers of any speeds over a policy, on a simulated clock."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.places import check_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from heterps.config import PolicyConfig
    from heterps.sim import Scenario, SimResult

SHOWN_ITERATIONS = 25
EXAMPLES = """
Examples:

  heterps simulate --workers 1.0,2.3 --mode dssp --lower 3 --spread 12 --horizon 1000

  heterps simulate --workers 8x1.0,2.3 --jitter 0.1 --horizon 1000 --compare bsp,asp,ssp:3,dssp:3:12

  heterps simulate --scenario scenario.yaml --mode bsp+backup:1 --window 90:130 --html simulation.html

  heterps simulate --workers 1.0,2.3 --mode dssp --lower 3 --spread 12 --horizon 1000 --seed 0 --json
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(simulate)


def simulate(
    workers: Annotated[
        str | None,
        typer.Option(help="Seconds an iteration of each worker takes: 1.0,2.3 or 8x1.0,2.3.", show_default=False),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            help="A scenario file: workers, jitter, slow-downs, deaths, joins, server, latency. Options go before it.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[str, typer.Option(help="bsp, asp, ssp or dssp; or in short as with --compare.")] = "dssp",
    lower: Annotated[
        int | None, typer.Option(help="ssp, dssp: lead up to which nobody waits; 3 if left out.", show_default=False)
    ] = None,
    spread: Annotated[
        int | None,
        typer.Option(help="dssp: most extra iterations granted at once; 12 if left out.", show_default=False),
    ] = None,
    predictor: Annotated[
        str | None, typer.Option(help="dssp: last, ema or elapsed; last if left out.", show_default=False)
    ] = None,
    hysteresis: Annotated[
        int | None, typer.Option(help="dssp: whoever waits goes on at lower less this.", show_default=False)
    ] = None,
    backup: Annotated[
        int | None, typer.Option(help="bsp: a round does not wait for its last so many workers.", show_default=False)
    ] = None,
    literal: Annotated[
        bool, typer.Option("--literal", help="dssp: as it was printed, which bounds no lead. To compare with.")
    ] = False,
    compare: Annotated[
        str | None,
        typer.Option(help="Policies to compare instead of --mode: bsp,asp,ssp:3,dssp:3:12.", show_default=False),
    ] = None,
    horizon: Annotated[float | None, typer.Option(help="Seconds until it ends.", show_default=False)] = None,
    iterations: Annotated[int | None, typer.Option(help="A worker is done after so many.", show_default=False)] = None,
    jitter: Annotated[
        float | None, typer.Option(help="Deviation of an iteration's seconds, as a part of them.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the jitter; 0 if left out.", show_default=False)] = None,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="FROM:TO", help="What part of the time the timeline shows, in seconds.", show_default=False
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write every input and decision of the policy to this file of JSON lines.", show_default=False
        ),
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the timeline to this file.", show_default=False)] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with everything to this file.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Play workers of given speeds over a policy on a simulated clock, before any of them is rented.

    The same seed gives the same run, and the n-th iteration of a worker takes as long under every policy.
    """
    from heterps.errors import ConfigError

    for path, what in ((trace, "trace"), (svg, "picture"), (html, "page")):
        if path is not None:
            check_folder(path, what)
    if compare is not None and (svg is not None or trace is not None):
        raise ConfigError("--svg and --trace are of one policy: leave out --compare, or use --html for a page of all.")
    given = {"workers": workers, "horizon_s": horizon, "iterations": iterations, "jitter": jitter, "seed": seed}
    played = _scenario(scenario, {name: value for name, value in given.items() if value is not None})
    options = {
        "lower": lower, "spread": spread, "predictor": predictor, "hysteresis": hysteresis, "backup": backup,
        "literal": literal or None,
    }  # fmt: skip
    policies = _policies(mode, compare, {name: value for name, value in options.items() if value is not None})
    shown = _window(window, played)
    keep = shown if html or svg or not (json or compare) else None
    results = [_run(played, policy, keep, trace) for policy in policies]
    if json:
        typer.echo(_as_json(results, every=compare is not None))
    else:
        _show(results, every=compare is not None)
    _write(results, svg, html)


def _scenario(path: Path | None, given: dict[str, Any]) -> Scenario:
    """Of the file, where there is one, with what the options say instead."""
    from heterps.errors import ConfigError
    from heterps.sim.scenario import Scenario
    from heterps.yamlfile import check_role, parse, read_text, validate

    if path is None:
        if "workers" not in given:
            raise ConfigError("say who works: --workers 1.0,2.3 (seconds an iteration), or --scenario FILE.")
        if "horizon_s" not in given and "iterations" not in given:
            raise ConfigError("say how long: --horizon SECONDS, --iterations NUMBER of each worker, or both.")
        return validate(given, Scenario, where="options")
    data, lines = parse(read_text(path, what="scenario"), where=str(path), what="scenario")
    check_role(data, where=str(path), what="scenario")
    written = {place: line for place, line in lines.items() if not place or place[0] not in given}
    return validate(data | given, Scenario, where=str(path), lines=written)


def _policies(mode: str, compare: str | None, options: dict[str, Any]) -> list[PolicyConfig]:
    """Those to compare, or the one of the mode and its options; which of them it does not have is noted."""
    from heterps.errors import ConfigError
    from heterps.report.consoles import make_console
    from heterps.sync import parse_policy
    from heterps.yamlfile import validate

    if compare is not None:
        if options:
            flags = ", ".join(f"--{name}" for name in options)
            raise ConfigError(f"{flags}: with --compare a policy's options are in its word, as in dssp:3:12+elapsed.")
        policies = [parse_policy(word) for word in compare.split(",")]
        for policy in policies:
            if policies.count(policy) > 1:
                raise ConfigError(f"--compare {compare}: {policy.label} is there twice; keep one of the two.")
        return policies
    named = parse_policy(mode)
    known = {name: value for name, value in options.items() if name in type(named).model_fields}
    if unknown := [f"--{name}" for name in options if name not in known]:
        make_console(stderr=True, soft_wrap=True).print(
            f"note: {named.kind} has no {' and no '.join(unknown)}: not used", markup=False
        )
    return [validate(named.model_dump() | known, type(named), where=f"policy {named.kind}")]


def _window(text: str | None, scenario: Scenario) -> tuple[float, float]:
    """As asked for; or the first iterations, as many as can be told apart."""
    from math import inf, isfinite

    from heterps.errors import ConfigError

    end_s = inf if scenario.horizon_s is None else scenario.horizon_s
    if text is None:
        return 0.0, min(end_s, SHOWN_ITERATIONS * max(scenario.seconds.values()))
    try:
        first, last = (float(word) for word in text.split(":"))
    except ValueError:
        raise ConfigError(f"--window {text}: write from and to in seconds, as in 90:130.") from None
    if not (0 <= first < last and isfinite(last)):
        raise ConfigError(f"--window {text}: it must begin at 0 or later, and end after it begins.")
    if first >= end_s:
        raise ConfigError(f"--window {text}: the simulation ends at {end_s:g} s.")
    return first, min(last, end_s)


def _run(scenario: Scenario, policy: PolicyConfig, window: tuple[float, float] | None, trace: Path | None) -> SimResult:
    from heterps.errors import StorageError
    from heterps.sim import Simulator
    from heterps.sync import record

    with _progress(scenario, policy.label) as tell:
        simulator = Simulator(scenario, policy, window=window, on_progress=tell)
        if trace is None:
            return simulator.run()
        try:
            with trace.open("w", encoding="utf-8") as file:
                record(simulator.policy, file)
                return simulator.run()
        except OSError as error:
            raise StorageError(f"{trace}: cannot write the trace: {error.strerror}. Name another file.") from None


@contextmanager
def _progress(scenario: Scenario, name: str) -> Iterator[Callable[[float, int], None] | None]:
    """On a terminal a bar over the simulated time, or over the pushes where only these end; elsewhere nothing."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from heterps.report.consoles import make_console

    console = make_console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    by_time = scenario.horizon_s is not None
    total = scenario.horizon_s or float((scenario.iterations or 0) * len(scenario.seconds))
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"simulating {name}", total=total)
        yield lambda now, pushes: bar.update(task, completed=now if by_time else float(pushes))


def _show(results: list[SimResult], *, every: bool) -> None:
    from heterps.report.consoles import make_console
    from heterps.report.simulation_table import show_policies, show_simulation

    console = make_console()
    if every:
        show_policies(console, results)
    else:
        show_simulation(console, results[0])


def _write(results: list[SimResult], svg: Path | None, html: Path | None) -> None:
    from heterps.report.simulation_page import write_page, write_svg

    if svg is not None:
        write_svg(svg, results[0])
    if html is not None:
        write_page(html, results)


def _as_json(results: list[SimResult], *, every: bool) -> str:
    """The result of the policy, or with --compare `policies`, a list of them."""
    import json

    return json.dumps({"policies": [result.as_json() for result in results]} if every else results[0].as_json())
