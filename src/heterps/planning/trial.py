"""Trials: the measurements of short runs of a plan, with the prediction for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps.planning.plan import Plan


@dataclass(frozen=True)
class StageSeconds:
    """Mean seconds per batch of a stage's workers; emulated seconds if the units were emulated."""

    compute_s: float
    communicate_s: float  # communication that computing did not hide
    wait_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds for which a worker is busy with a batch: ET(k) of the cost model."""
        return self.compute_s + self.communicate_s


@dataclass(frozen=True)
class Trial:
    """The measurements of a trial, after a warm-up. `plan` has the predicted bill."""

    plan: Plan
    throughput: float  # samples a second
    stages: tuple[StageSeconds, ...]
    num_batches: int
    seconds: float  # time of these batches
    is_emulated: bool = False
    late: float = 0.0  # emulated only: share of the time for which this machine was slower than the emulated units
    start_s: float = 0.0  # seconds that the batches of the warm-up took more than others; not emulated


def trial_of_run(
    plan: Plan,
    batch_size: int,
    throughput: float,
    stages: Sequence[Mapping[str, Any]],
    num_batches: int,
    seconds: float,
) -> Trial:
    """Take a run by a plan for a trial of it; `stages` has the shares of what its workers did, as in summary.json."""
    batch_s = batch_size / throughput
    spent = tuple(
        StageSeconds(*((stage[doing] or 0.0) * batch_s for doing in ("compute", "communicate", "wait")))
        for stage in stages
    )
    return Trial(plan, throughput, spent, num_batches, seconds)


class TrialStopped(Exception):
    """The user stopped the trials; the text names the signal."""


RunTrial = Callable[[Plan], Trial]
