"""Trial: what a short run by a plan measured, beside what was predicted for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heterps.planning.plan import Plan


@dataclass(frozen=True)
class StageSeconds:
    """What each worker of a stage spent on a batch, on average; emulated seconds where units were emulated."""

    compute_s: float
    communicate_s: float  # as far as computing did not hide it
    wait_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """ET(k) of the cost model."""
        return self.compute_s + self.communicate_s


@dataclass(frozen=True)
class Trial:
    """`plan` carries the bill that was predicted; everything else was measured, after a warm-up."""

    plan: Plan
    throughput: float  # samples a second
    stages: tuple[StageSeconds, ...]
    num_batches: int
    seconds: float  # that the batches took
    is_emulated: bool = False
    late: float = 0.0  # emulated: share of the time by which this machine computed longer than its units may


class TrialStopped(Exception):
    """Somebody wants no more trials; the text names the signal."""


RunTrial = Callable[[Plan], Trial]
