"""Variants side by side: who reaches the target soonest on this cluster, and why."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heterps.sim.virtual import VirtualRun

DEFAULT_PART = 0.99
"""Without a target, it is this part of what every variant has reached with every seed."""


@dataclass(frozen=True)
class Row:
    """A variant over all seeds. Seconds are simulated; None: with some seed the target was never reached."""

    label: str
    seconds: tuple[float | None, ...]  # to the target, by seed
    best: tuple[float, ...]
    end_s: float  # mean, as all below
    updates: float
    staleness: float
    wait_share: float  # of the workers' time
    dropped_share: float  # of the samples
    failed: str | None

    @property
    def median_s(self) -> float | None:
        """To the target; where a seed never reaches it, None."""
        reached = [s for s in self.seconds if s is not None]
        return statistics.median(reached) if len(reached) == len(self.seconds) else None

    @property
    def spread_s(self) -> float | None:
        """Between the fastest and the slowest seed."""
        reached = [s for s in self.seconds if s is not None]
        return max(reached) - min(reached) if len(reached) == len(self.seconds) else None

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.label,
            "seconds_to_target": list(self.seconds),
            "median_s": self.median_s,
            "best": list(self.best),
            "end_s": self.end_s,
            "updates": self.updates,
            "mean_staleness": self.staleness,
            "wait_share": self.wait_share,
            "dropped_share": self.dropped_share,
            "failed": self.failed,
        }


@dataclass(frozen=True)
class Comparison:
    target: float
    rows: tuple[Row, ...]  # in the order they were asked for

    @property
    def soonest(self) -> Row | None:
        """None where no variant reaches the target with every seed."""
        reaching = [row for row in self.rows if row.median_s is not None]
        return min(reaching, key=lambda row: row.median_s or 0.0, default=None)


def compare(runs: Sequence[VirtualRun], target: float | None = None) -> Comparison:
    """Runs of several variants and seeds as a table. Raises ValueError without runs."""
    if not runs:
        raise ValueError("there is nothing to compare: give at least one run")
    if target is None:
        finite = [run.best for run in runs if run.failed is None and math.isfinite(run.best)]
        target = DEFAULT_PART * min(finite, default=0.0)
    labels = dict.fromkeys(run.variant.label for run in runs)
    return Comparison(
        target, tuple(_row(label, [run for run in runs if run.variant.label == label], target) for label in labels)
    )


def _row(label: str, runs: Sequence[VirtualRun], target: float) -> Row:
    def mean(values: Sequence[float]) -> float:
        return statistics.fmean(values)

    return Row(
        label=label,
        seconds=tuple(None if run.failed else run.seconds_to(target) for run in runs),
        best=tuple(run.best for run in runs),
        end_s=mean([run.sim.end_s for run in runs]),
        updates=mean([run.sim.updates for run in runs]),
        staleness=mean([run.sim.mean_staleness or 0.0 for run in runs]),
        wait_share=mean([run.sim.wait_s / run.sim.present_s if run.sim.present_s else 0.0 for run in runs]),
        dropped_share=mean([run.dropped_samples / max(run.samples + run.dropped_samples, 1) for run in runs]),
        failed=next((run.failed for run in runs if run.failed), None),
    )


def advise(comparison: Comparison) -> str:
    """Which variant to take and why, in a few sentences, by what was measured."""
    best = comparison.soonest
    if best is None or best.median_s is None:
        highest = max(comparison.rows, key=lambda row: min(row.best))
        return (
            f"No policy reaches {comparison.target:.4g} with every seed. {highest.label} comes nearest, "
            f"with {min(highest.best):.4g} at least: lower the target, train longer or change the learning rate."
        )
    says = [f"Take {best.label}: it reaches {comparison.target:.4g} after {best.median_s:,.4g} simulated seconds."]
    others = sorted((row for row in comparison.rows if row is not best), key=lambda row: row.median_s or math.inf)
    for row in others[:2]:
        says.append(_why_not(row, best, best.median_s))
    noise = best.spread_s or 0.0
    close = [row.label for row in others if row.median_s is not None and row.median_s - best.median_s <= noise]
    if close:
        says.append(f"Seeds differ by {noise:,.3g} s, so that {', '.join(close)} cannot be told apart from it.")
    return " ".join(says)


def _why_not(row: Row, best: Row, seconds: float) -> str:
    if row.failed:
        return f"{row.label} diverges: {row.failed}"
    if row.median_s is None:
        return f"{row.label} does not reach it with every seed ({_difference(row, best)})."
    return f"{row.label} takes {row.median_s / seconds:.2f} times as long ({_difference(row, best)})."


def _difference(row: Row, best: Row) -> str:
    """What sets two variants apart: waiting, staleness, updates."""
    return (
        f"its workers wait {row.wait_share:.0%} of the time and its gradients miss {row.staleness:.1f} updates, "
        f"against {best.wait_share:.0%} and {best.staleness:.1f}"
    )
