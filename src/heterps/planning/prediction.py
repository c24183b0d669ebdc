"""A prediction of a run: the seconds of a batch by term, and the interval in which its throughput is expected.

seconds of a batch = compute + servers + network + overhead        throughput = batch size / seconds
seconds of a run   = start + batches * seconds of a batch

low       throughput       high       9 of 10 runs are expected between low and high: the logarithm of the
 |------------|-------------|         throughput has the standard error `error`
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field, NonNegativeFloat

from heterps.profiling.profile import Cost, FiniteRecord

NORMAL_90 = 1.645
"""Standard deviations on each side of the mean that hold 90 % of a normal distribution."""

DRIFT = 0.13
"""Relative standard deviation between runs of one job on one shared machine (benchmarks/predictions), whatever its
profile says."""

UNTESTED = 0.25
"""Relative error of a sum of layers that was never compared with a real step."""

ESTIMATED = 0.5
"""Relative error of the seconds of a device that nobody has measured: a judgement, wide on purpose."""

TERMS = ("compute_s", "servers_s", "network_s", "overhead_s")
"""The fields of a prediction that add up to the seconds of a batch."""


def _is_zero(seconds: float) -> bool:
    return seconds == 0


class Prediction(FiniteRecord):
    """The seconds that a run is predicted to spend on a batch, by term."""

    compute_s: NonNegativeFloat = Field(description="Seconds of the layers, forward and backward.")
    servers_s: NonNegativeFloat = Field(0.0, description="Seconds of pulls, pushes and optimizer steps.")
    network_s: NonNegativeFloat = Field(0.0, description="Seconds of moving parameters, gradients and activations.")
    overhead_s: float = Field(
        0.0, description="All other seconds: messages, reading, waiting. Below 0 where the terms above overlap."
    )
    start_s: NonNegativeFloat = Field(
        0.0, description="Further seconds that the first batches of a run take.", exclude_if=_is_zero
    )
    error: NonNegativeFloat = Field(description="Relative standard error of the sum.")
    basis: str = Field("", description="What the prediction rests on, in words.")

    @property
    def seconds(self) -> float:
        """Seconds of a batch."""
        return self.compute_s + self.servers_s + self.network_s + self.overhead_s

    def over(self, num_batches: float) -> Prediction:
        """Return the prediction of the mean batch of a run of `num_batches`, which has its share of the start."""
        if not num_batches > 0:
            return self
        return self.model_copy(update={"overhead_s": self.overhead_s + self.start_s / num_batches, "start_s": 0.0})

    def throughput(self, batch_size: int) -> tuple[float, float, float]:
        """Return the samples per second that are expected, and the low and the high end of their interval."""
        expected, wide = batch_size / self.seconds, math.exp(NORMAL_90 * self.error)
        return expected, expected / wide, expected * wide


def layers_error(costs: Sequence[Cost]) -> float:
    """Return the relative standard error of the compute seconds of layers with these costs, taken together."""
    total_s = sum(cost.compute_s for cost in costs)
    return math.hypot(*(cost.compute_s * (cost.error or 0.0) for cost in costs)) / total_s if total_s > 0 else 0.0


def combined(*errors: float) -> float:
    """Return the relative error of a product of independent factors with these errors."""
    return math.hypot(*errors)
