"""What a simulation found, on a terminal: the workers of one policy, or several policies side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console

from heterps.report.figures import plural, short
from heterps.report.terminal.tables import figures_table
from heterps.report.terminal.timeline import show_timeline
from heterps.sim.result import SimResult, WorkerResult

MOST_ROWS = 16
POLICY_HEADS = ("policy", "pushes", "per s", "waits", "wait s", "wait %", "lead", "stale")
MEANING = (
    "lead: the largest at which an iteration started. stale: updates of others between a pull and its push, in the "
    "mean."
)
WORKER_HEADS = ("worker", "s/iteration", "pushes", "waits", "wait s", "wait %", "push s")


@dataclass(frozen=True)
class WorkerGroup:
    """Workers in one row of the table: one, or several neighbours, whose figures are then means."""

    workers: tuple[WorkerResult, ...]

    @property
    def name(self) -> str:
        """The name of the worker, or of the first and the last."""
        first, last = self.workers[0].name, self.workers[-1].name
        return first if len(self.workers) == 1 else f"{first}-{last} (mean)"

    def cells(self) -> tuple[str, ...]:
        """The cells of WORKER_HEADS."""
        seconds = self.workers[0].seconds
        speed = short(seconds) if all(worker.seconds == seconds for worker in self.workers) else "several"
        waiting = share(self._mean("wait_s"), sum(self._mean(name) for name in ("wait_s", "compute_s", "push_s")))
        counts = (f"{self._mean(name):,.{0 if len(self.workers) == 1 else 1}f}" for name in ("pushes", "waits"))
        return (self.name, speed, *counts, f"{self._mean('wait_s'):,.1f}", waiting, f"{self._mean('push_s'):,.1f}")

    def _mean(self, field: str) -> float:
        return float(sum(getattr(worker, field) for worker in self.workers)) / len(self.workers)


def show_simulation(console: Console, result: SimResult) -> None:
    """Prints the workers, the timeline if it was kept, and the outcome in a sentence or three."""
    console.print(figures_table(WORKER_HEADS, [group.cells() for group in make_groups(result.workers)]))
    console.print()
    show_timeline(console, result)
    console.print()
    console.print(f"{result.policy}: {outcome(result)}", markup=False)


def show_policies(console: Console, results: Sequence[SimResult]) -> None:
    """Prints one row per policy, and warnings about the figures."""
    console.print(figures_table(*policy_table(results)))
    console.print(MEANING, style="dim")
    for result in results:
        if text := warning(result):
            console.print(f"{result.policy}: {text}", markup=False)


def make_groups(workers: Sequence[WorkerResult], most: int = MOST_ROWS) -> list[WorkerGroup]:
    """Return `most` groups or fewer: one per worker, or per run of neighbours of equal speed, or equally large ones."""
    if len(workers) <= most:
        return [WorkerGroup((worker,)) for worker in workers]
    groups = [WorkerGroup(tuple(some)) for _, some in groupby(workers, lambda worker: worker.seconds)]
    if len(groups) <= most:
        return groups
    size = -(-len(workers) // most)
    return [WorkerGroup(tuple(workers[i : i + size])) for i in range(0, len(workers), size)]


def policy_table(results: Sequence[SimResult]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The heads and the rows of the table of policies; dropped gradients have a column only where there are some."""
    has_dropped = any(result.dropped for result in results)
    rows = [
        (
            result.policy,
            f"{result.pushes:,}",
            f"{result.pushes_per_s:,.4g}",
            f"{result.waits:,}",
            f"{result.wait_s:,.{1 if result.wait_s < 1000 else 0}f}",
            share(result.wait_s, result.present_s),
            f"{result.max_lead:,}",
            staleness(result),
            *([f"{result.dropped:,}"] if has_dropped else []),
        )
        for result in results
    ]
    return (*POLICY_HEADS, "dropped") if has_dropped else POLICY_HEADS, rows


def outcome(result: SimResult) -> str:
    """What the simulation found, in words."""
    sentence = (
        f"{result.pushes:,} {'push' if result.pushes == 1 else 'pushes'} in {result.end_s:,.6g} s "
        f"({result.pushes_per_s:,.4g} a second). Workers waited {plural(result.waits, 'time')}, "
        f"{result.wait_s:,.1f} s in all, {share(result.wait_s, result.present_s)} of their time. No iteration started "
        f"more than {result.max_lead:,} ahead of the slowest worker; a gradient was {staleness(result)} updates old in "
        "the mean."
    )
    return f"{sentence} {told}" if (told := warning(result)) else sentence


def warning(result: SimResult) -> str:
    """What a reader of the figures must know besides; empty: nothing."""
    if result.policy.endswith("+literal"):
        return "This is DSSP as it was printed, which bounds no lead: to compare with, not to train with."
    if result.dropped:
        return f"{plural(result.dropped, 'gradient')} came too late for the round and went to waste (backup workers)."
    return ""


def share(part: float, whole: float) -> str:
    """A part of a whole as a percentage; `-` of nothing."""
    return f"{part / whole:.1%}" if whole else "-"


def staleness(result: SimResult) -> str:
    """The mean staleness in updates; `-` where nobody pushed."""
    return "-" if result.mean_staleness is None else f"{result.mean_staleness:,.2f}"
