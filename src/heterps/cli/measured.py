"""`heterps simulate --from RUN`: workers as a run has measured them, and the policy that suits them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps.errors import ConfigError

if TYPE_CHECKING:
    from heterps.sim import Scenario
    from heterps.sim.measured import MeasuredWorkers

DEFAULT_SEEDS = 5


def measured_options(
    run: Path, given: dict[str, Any], *, has_end: bool, has_job: bool
) -> tuple[MeasuredWorkers, dict[str, Any]]:
    """The workers of the run, and the options of the scenario with them.

    A scenario without an end is as long as the run, so that seeds differ by as much as such runs would. With a job, the
    seconds are those of whole batches, of which workers in rounds have measured a share each.
    """
    from heterps.sim.measured import read_measured

    for name in ("workers", "jitter"):
        if name in given:
            raise ConfigError(f"--{name}: --from {run} says how long iterations take: leave out one of the two.")
    measured = read_measured(run)
    if has_job and measured.policy.in_rounds:
        measured = measured.of_whole_batches()
    end = {} if has_end else {"horizon_s": measured.busy_s}
    return measured, end | given | {"workers": measured.means, "measured": tuple(measured.seconds.values())}


def advise_measured(
    measured: MeasuredWorkers, scenario: Scenario, compare: str | None, *, seeds: int | None, as_json: bool
) -> None:
    """Shows how much faster than in the run the workers would be under other policies, and which one to take."""
    from heterps.cli.output import print_json
    from heterps.report.terminal.consoles import make_console
    from heterps.report.terminal.pace_table import show_paces
    from heterps.sim.pace import advise_pace, advised_pace, compare_paces, default_paces
    from heterps.sim.variants import Variant, parse_variants

    num_lanes = len(scenario.workers)
    if num_lanes == 1:
        raise ConfigError("--advise: the run has one worker, which waits for nobody. Measure one with several workers.")
    own = measured.policy
    variants = default_paces(own, scenario) if compare is None else parse_variants(compare)
    for variant in variants:
        if variant != Variant(variant.policy, fitted=variant.fitted):
            raise ConfigError(f"--compare: {variant.label} is about what is learned: say what, with --job FILE.")
    paces = compare_paces(scenario, variants, own, seeds or DEFAULT_SEEDS)
    advice = advise_pace(paces, own, num_lanes)
    if as_json:
        rows = [pace.as_json() for pace in paces]
        print_json({"own": own.label, "lanes": num_lanes, "advised": advised_pace(paces).policy, "policies": rows,
                    "advice": advice})  # fmt: skip
    else:
        show_paces(make_console(), paces, own.label, advice)
