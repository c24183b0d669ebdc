"""Variants side by side: which reaches the target soonest on this cluster, and why.

seconds to the target  =  samples to the target  /  samples a second
                          what staleness costs      what waiting costs
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heterps.sim.course import VirtualRun

DEFAULT_PART = 0.99
"""The default target, as a part of the quality that every variant has reached with every seed."""
ALIKE = 0.02
"""Relative difference below which two rates or numbers of samples are called the same."""


@dataclass(frozen=True)
class VariantSummary:
    """What one variant did over all seeds. Seconds are simulated; None: target never reached, or training diverged."""

    label: str
    seconds: tuple[float | None, ...]  # to the target, by seed
    samples: tuple[int | None, ...]  # to the target, by seed
    best: tuple[float, ...]
    end_s: float  # mean, as all below
    samples_per_s: float
    step_s: float  # between two evaluations: what seconds are exact to
    updates: float
    staleness: float
    wait_share: float  # of the workers' time
    dropped_share: float  # of the samples
    failed: str | None  # of the first seed with which training diverged
    can_train: bool = True  # whether `heterps train` knows the variant; others can only be simulated

    @property
    def median_s(self) -> float | None:
        """Median of the seconds to the target; None where a seed never reaches it."""
        return _median(self.seconds)

    @property
    def median_samples(self) -> float | None:
        return _median(self.samples)

    @property
    def range_s(self) -> tuple[float, float] | None:
        """Seconds to the target of the fastest and of the slowest seed; None where a seed never reaches it."""
        reached = [s for s in self.seconds if s is not None]
        return (min(reached), max(reached)) if len(reached) == len(self.seconds) else None

    @property
    def noise_s(self) -> float:
        """Least difference in seconds that means anything: the range of the seeds, or the time between evaluations."""
        first, last = self.range_s or (0.0, 0.0)
        return max(last - first, self.step_s)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"median_s": self.median_s}


@dataclass(frozen=True)
class VariantComparison:
    """All variants that were compared, with the target they were to reach."""

    target: float
    measure: str  # what the target is of: AUC, accuracy or R²
    rows: tuple[VariantSummary, ...]  # in the order they were asked for

    @property
    def soonest(self) -> VariantSummary | None:
        """The variant that reaches the target first; None where none reaches it with every seed."""
        return _soonest(self.rows)

    @property
    def advised(self) -> VariantSummary | None:
        """The variant that reaches the target first among those that `heterps train` can run."""
        return _soonest([row for row in self.rows if row.can_train])


def _soonest(rows: Sequence[VariantSummary]) -> VariantSummary | None:
    reaching = [row for row in rows if row.median_s is not None]
    return min(reaching, key=lambda row: row.median_s or 0.0, default=None)


def compare(runs: Sequence[VirtualRun], target: float | None = None) -> VariantComparison:
    """Summarises runs of several variants and seeds. Raises ValueError without runs."""
    if not runs:
        raise ValueError("there is nothing to compare: give at least one run")
    if target is None:
        reached = min((run.best for run in runs if run.failed is None), default=0.0)
        target = DEFAULT_PART * reached if reached >= 0 else reached / DEFAULT_PART
    labels = dict.fromkeys(run.variant.label for run in runs)
    rows = tuple(_row(label, [run for run in runs if run.variant.label == label], target) for label in labels)
    return VariantComparison(target, runs[0].measure, rows)


def _row(label: str, runs: Sequence[VirtualRun], target: float) -> VariantSummary:
    reached = [run.reaches(target) for run in runs]

    def mean(of: Callable[[VirtualRun], float]) -> float:
        return statistics.fmean(map(of, runs))

    return VariantSummary(
        label=label,
        seconds=tuple(point.now_s if point else None for point in reached),
        samples=tuple(point.samples if point else None for point in reached),
        best=tuple(run.best for run in runs),
        end_s=mean(lambda run: run.sim.end_s),
        samples_per_s=mean(lambda run: run.samples / run.sim.end_s if run.sim.end_s else 0.0),
        step_s=mean(lambda run: run.sim.end_s / max(len(run.points), 1)),
        updates=mean(lambda run: run.sim.updates),
        staleness=mean(lambda run: run.sim.mean_staleness or 0.0),
        wait_share=mean(lambda run: run.sim.wait_s / run.sim.present_s if run.sim.present_s else 0.0),
        dropped_share=mean(lambda run: run.dropped_samples / max(run.samples + run.dropped_samples, 1)),
        failed=next((run.failed for run in runs if run.failed), None),
        can_train=runs[0].variant.can_train,
    )


def advise(comparison: VariantComparison) -> list[str]:
    """Sentences that say which variant to take and why, by what was measured: one that `heterps train` can run."""
    best, wanted = comparison.advised, f"{comparison.measure} {comparison.target:.4g}"
    if best is None or best.median_s is None:
        runnable = [row for row in comparison.rows if row.can_train]
        which = "" if len(runnable) == len(comparison.rows) else " that `heterps train` can run"
        highest = max(runnable, key=lambda row: min(row.best), default=None)
        nearest = f" {highest.label} comes nearest, with at least {min(highest.best):.4g}:" if highest else ""
        return [
            f"No policy{which} reaches {wanted} with every seed.{nearest} lower the target, train longer or change the "
            "learning rate."
        ]
    first, last = best.range_s or (0.0, 0.0)
    over = f" ({first:,.4g} to {last:,.4g} over {len(best.seconds)} seeds)" if len(best.seconds) > 1 else ""
    says = [f"Take {best.label}: it reaches {wanted} after {best.median_s:,.4g} simulated seconds{over}."]
    if best.label.endswith("+fitted"):
        says[0] += " In the job: sync: bsp, workers: {shares: fitted}."
    others = sorted((row for row in comparison.rows if row is not best), key=lambda row: row.median_s or math.inf)
    close = [row for row in others if row.median_s is not None and _is_close(row.median_s, row, best)]
    if close:
        names = ", ".join(row.label for row in close)
        says.append(f"It cannot be told apart from {names}: seeds and the steps between evaluations differ by as much.")
    says += [_why_not(row, best, best.median_s) for row in others if row not in close]
    return says


def _is_close(median_s: float, row: VariantSummary, best: VariantSummary) -> bool:
    assert best.median_s is not None
    return abs(median_s - best.median_s) <= max(row.noise_s, best.noise_s)


def _why_not(row: VariantSummary, best: VariantSummary, seconds: float) -> str:
    if not row.can_train and row.median_s is not None and row.median_s < seconds:
        return (
            f"{row.label} would take {row.median_s / seconds:.2f} times as long, but `heterps train` cannot run it: it "
            "can only be simulated."
        )
    if row.failed:
        return f"{row.label} diverges: {row.failed}"
    if row.median_s is None:
        missed = sum(s is None for s in row.seconds)
        return (
            f"{row.label} does not reach it with {missed} of {len(row.seconds)} seeds: its best is "
            f"{min(row.best):.4g}, its gradients miss {row.staleness:.1f} updates."
        )
    return f"{row.label} takes {row.median_s / seconds:.2f} times as long: {_reasons(row, best)}."


def _reasons(row: VariantSummary, best: VariantSummary) -> str:
    """Compares the two factors of the seconds to the target with those of the best variant, each with its cause."""
    assert row.median_samples is not None
    assert best.median_samples is not None
    rate, need = row.samples_per_s / best.samples_per_s, row.median_samples / best.median_samples
    return (
        f"it gets through {_times(rate)} samples a second{_why_rate(row, best)}, "
        f"and needs {_times(need)} samples for it{_why_need(row, best)}"
    )


def _why_rate(row: VariantSummary, best: VariantSummary) -> str:
    """Why samples come faster or slower: waiting, and gradients that are dropped."""
    reasons = []
    if abs(row.wait_share - best.wait_share) >= ALIKE:
        reasons.append(f"its workers wait {row.wait_share:.0%} of their time, against {best.wait_share:.0%}")
    if row.dropped_share or best.dropped_share:
        reasons.append(f"{row.dropped_share:.0%} of its samples go to waste, against {best.dropped_share:.0%}")
    return f" ({', and '.join(reasons)})" if reasons else ""


def _why_need(row: VariantSummary, best: VariantSummary) -> str:
    """Why more or fewer samples are needed: the number of updates made of them, and how stale these are."""
    reasons = []
    if abs(row.updates - best.updates) >= ALIKE * best.updates:
        reasons.append(f"it makes {row.updates:,.0f} updates in all, against {best.updates:,.0f}")
    if abs(row.staleness - best.staleness) >= ALIKE:
        reasons.append(f"its gradients miss {row.staleness:.1f} updates each, against {best.staleness:.1f}")
    return f" ({', and '.join(reasons)})" if reasons else " (with as many updates, as stale: its steps are others)"


def _times(ratio: float) -> str:
    return "as many" if abs(ratio - 1) < ALIKE else f"{ratio:.2f} times the"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None
