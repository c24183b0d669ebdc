"""Divergence: whether training makes a model worse, by its loss against two things.

    lowest loss so far, of the first batch or of an interval ---+
                                                                +--> the loss is more than FACTOR times both: alarm
    loss of always saying the average label --------------------+

Either alone would be wrong: numbers far from 0 begin far above the average and come down, and a loss that was low may
rise for a while with the data. A model with a loss of its own has the first only, and gets OWN_FACTOR instead.
"""

from __future__ import annotations

import math
from typing import Any

FACTOR = 2.0
OWN_FACTOR = 10.0


class Divergence:
    """Judges the intervals of a run one after another; `alarm` is a sentence while the last one was bad."""

    def __init__(self) -> None:
        self.alarm: str | None = None
        self._lowest = math.inf

    def begin(self, loss: float) -> None:
        """Take the loss of a batch as the first one, if no loss is known yet."""
        if math.isinf(self._lowest):
            self._lowest = loss

    def judge(self, samples: int, loss: float, against_average: float | None) -> None:
        """Judge an interval that ended after `samples` by its mean loss.

        against_average  its error over that of always saying the average label; None where the model has a loss of its
                         own, so that its outputs are not judged
        """
        lowest = self._lowest
        rose = lowest > 0 and loss > (OWN_FACTOR if against_average is None else FACTOR) * lowest
        diverges = rose and (against_average is None or against_average > FACTOR)
        beside = (
            "" if against_average is None else f", and {against_average:,.1f} times that of always saying the average"
        )
        self.alarm = (
            f"training diverges: at {samples:,} samples the loss is {loss:,.2f}, {loss / lowest:,.1f} times the lowest "
            f"before{beside}. Lower the learning rate, clip gradients (optimizers.clip), or look at the data."
            if diverges
            else None
        )
        self._lowest = min(lowest, loss)

    def state(self) -> dict[str, Any]:
        return {"lowest": None if math.isinf(self._lowest) else self._lowest, "alarm": self.alarm}

    def restore(self, state: dict[str, Any]) -> None:
        self.alarm = state["alarm"]
        self._lowest = math.inf if state["lowest"] is None else state["lowest"]
