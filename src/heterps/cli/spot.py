"""`heterps simulate --spot`: a plan over a trace of spot capacity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from heterps.cli.output import print_json
from heterps.config import Cluster, load_cluster
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console

if TYPE_CHECKING:
    from heterps.planning.plan import Plan
    from heterps.sim.spot_traces import Capacity

GENERATED = {"generated": True, "independent": False}
"""Words for a generated trace, and whether all units of a resource go together in it."""
SEEDS = 100
"""Number of generated traces, unless another is given."""


def play_spot(
    trace: str, plan: Path | None, cluster: Path | None, *, seed: int, seeds: int | None, as_json: bool
) -> None:
    """Play the plan over the trace, or over as many as there are seeds, and print what it took and cost."""
    from heterps.planning.plan import load_plan
    from heterps.report.terminal.spot_table import show_spot, spread
    from heterps.sim.spot import play

    if plan is None or cluster is None:
        raise ConfigError("--spot plays a plan: add --plan PLAN and --cluster CLUSTER, the files it was planned with.")
    planned, rented = load_plan(plan), load_cluster(cluster)
    num = seeds or (SEEDS if trace in GENERATED else 1)
    runs = [play(planned, rented, one) for one in _traces(trace, planned, rented, seed, num)]
    if as_json:
        predicted = {"hours": planned.hours, "usd": planned.usd}
        print_json({"trace": trace, "predicted": predicted, **spread(runs), "runs": [asdict(run) for run in runs]})
    else:
        show_spot(make_console(), planned, runs)


def _traces(trace: str, plan: Plan, cluster: Cluster, seed: int, num: int) -> Iterable[Iterable[Capacity]]:
    """The generated traces, or that of the file, from its beginning and then from others drawn at random.

    A later beginning leaves at least the predicted hours of the trace.
    """
    import numpy as np

    from heterps.sim.spot import spot_units
    from heterps.sim.spot_traces import from_second, generated, read_trace

    units = spot_units(plan, cluster)
    if trace in GENERATED:
        return (generated(units, cluster, seed + i, together=GENERATED[trace]) for i in range(num))
    rows = read_trace(Path(trace), units)
    latest_s = max(rows[-1].time_s - plan.hours * 3600, 0.0)
    starts = np.random.default_rng(seed).uniform(0.0, latest_s, num)
    return (from_second(rows, 0.0 if i == 0 else float(start)) for i, start in enumerate(starts))
