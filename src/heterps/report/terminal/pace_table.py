"""Policies compared by how fast measured workers would be under each, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from heterps.report.figures import rate
from heterps.report.terminal.simulation_table import MEANING
from heterps.report.terminal.tables import figures_table
from heterps.sim.pace import PolicyPace, advised_pace

HEADS = ("policy", "gain", "seeds", "per s", "wait", "lead", "stale")


def show_paces(console: Console, paces: Sequence[PolicyPace], own: str, advice: Sequence[str]) -> None:
    """Prints one row per policy, with a tick at the one that is advised, and the advice."""
    advised = advised_pace(paces)
    named = f"{advised.policy} ✓"
    console.print(
        figures_table(HEADS, [_cells(pace, named if pace is advised else pace.policy) for pace in paces], named)
    )
    console.print(
        f"gain: iterations a second, as times those of {own}; medians, and beside them the worst and the best seed. "
        f"wait: part of the workers' time. {MEANING}",
        style="dim",
        markup=False,
    )
    console.print()
    for sentence in advice:
        console.print(sentence, markup=False)


def _cells(pace: PolicyPace, name: str) -> tuple[str, ...]:
    low, high = pace.range
    figures = (f"{pace.gain:.2f}", f"{low:.2f}-{high:.2f}", rate(pace.per_s), f"{pace.wait_share:.0%}")
    return (name, *figures, f"{pace.max_lead:.0f}", f"{pace.staleness:.2f}")
