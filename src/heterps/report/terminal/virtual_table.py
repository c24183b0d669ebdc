"""Policies compared by what a job learns with each, on a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console

from heterps.report.figures import rate
from heterps.report.terminal.tables import figures_table
from heterps.sim.compare import VariantComparison, VariantSummary

NEVER = "never"


def show_comparison(
    console: Console, comparison: VariantComparison, advice: Sequence[str] = (), notes: Sequence[str] = ()
) -> None:
    """Prints one row per policy, with a tick where the target is reached soonest, the advice, and notes."""
    soonest = cells(comparison.soonest, comparison)[0] if comparison.soonest else None
    console.print(figures_table(heads(comparison), [cells(row, comparison) for row in comparison.rows], soonest))
    console.print(meaning(comparison), style="dim", markup=False)
    if comparison.soonest is None and not advice:
        console.print(f"No policy reaches {comparison.measure} {comparison.target:.4g} with every seed.", markup=False)
    for row in comparison.rows:
        if row.failed and not advice:
            console.print(f"{row.label} diverged: {row.failed}", markup=False)
    if advice:
        console.print()
    for sentence in (*advice, *notes):
        console.print(sentence, markup=False)


def heads(comparison: VariantComparison) -> tuple[str, ...]:
    """The names of the columns of `cells`."""
    several = ("seeds",) if _has_seeds(comparison) else ()
    wasted = ("drop",) if _drops(comparison) else ()
    return ("policy", f"s to {comparison.target:.4g}", *several, "best", "per s", "stale", "wait", *wasted)


def cells(row: VariantSummary, comparison: VariantComparison) -> tuple[str, ...]:
    """The cells of a variant under `heads`."""
    several = (_range(row),) if _has_seeds(comparison) else ()
    wasted = (f"{row.dropped_share:.0%}",) if _drops(comparison) else ()
    tick = " ✓" if row is comparison.soonest else ""
    return (
        f"{row.label}{tick}",
        _reached(row),
        *several,
        f"{statistics.median(row.best):.4f}",
        rate(row.samples_per_s),
        f"{row.staleness:.2f}",
        f"{row.wait_share:.0%}",
        *wasted,
    )


def meaning(comparison: VariantComparison) -> str:
    """What the columns are, in words."""
    seeds = "medians, and beside them the fastest and the slowest seed; " if _has_seeds(comparison) else ""
    step = max(row.step_s for row in comparison.rows)
    return (
        f"Simulated seconds until {comparison.measure} {comparison.target:.4g}; {seeds}evaluated every {step:,.3g} s "
        "or sooner. per s: samples. stale: updates of others between a pull and its push, in the mean. wait: part of "
        "the workers' time."
    )


def _reached(row: VariantSummary) -> str:
    if row.failed:
        return "diverged"
    return NEVER if row.median_s is None else f"{row.median_s:,.1f}"


def _range(row: VariantSummary) -> str:
    if row.range_s is None:
        reached = sum(s is not None for s in row.seconds)
        return f"{reached} of {len(row.seconds)}"
    digits = 1 if row.range_s[1] < 1000 else 0
    return f"{row.range_s[0]:,.{digits}f}-{row.range_s[1]:,.{digits}f}"


def _has_seeds(comparison: VariantComparison) -> bool:
    return len(comparison.rows[0].seconds) > 1


def _drops(comparison: VariantComparison) -> bool:
    return any(row.dropped_share for row in comparison.rows)
