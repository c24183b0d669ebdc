"""Metrics of a binary classifier over a stream: constant memory, mergeable, independent of the order of samples.

AUC is the chance that a positive sample scores above a negative one, ties counting half. We count positives and
negatives in bins of the logit and count pairs bin by bin (the trapezoid rule on the ROC curve):

       negatives below          AUC = sum over bins b of  pos[b] * (neg[< b] + neg[b] / 2)  /  (P * N)
      |<------------>|
    --+---+---+---+--+--+---    Only pairs inside one bin are uncertain. They count half, and truly between nothing and
      |   |   |   |  b  |       all, so    |AUC - exact AUC| <= auc_error = sum of pos[b] * neg[b] / (2 * P * N),
    --+---+---+---+-----+---    which the histogram itself knows: the bound is reported, not assumed.

The bins have equal width in u = c / 2(c - x) for a logit x < 0, and 1 - c / 2(c + x) for x >= 0: a line through the
middle that bends to 0 and 1 far out, so that every finite logit has its place without a range to choose. With c = 16
and 2^16 bins, a bin is 0.0005 wide in logits at 0 (p = .5), 0.001 at -7 (p = .001) and 0.05 at -150. For predictions
whose logits spread by s around there, auc_error is about 0.0001 / s, and the real error far below it, because inside
so narrow a bin positives and negatives are nearly mixed at random.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.errors import DataError, NotFinite

NUM_BINS = 1 << 16
BEND = 16.0  # c above
LEAST_TO_JUDGE = 1000
"""Number of logits that are seen before they are said to look like probabilities."""


class BinaryMetrics:
    """Update it with batches, merge it with others: the same samples give the same metrics, in any order.

    Counts, and with them `auc`, `auc_error` and `accuracy`, are equal to the bit, unless samples have weights; the sums
    behind `log_loss` and `calibration` up to the rounding of float64. What is undefined for the samples so far is NaN:
    everything without samples, `auc` and `normalised_entropy` while only one class was seen, `calibration` without
    positives.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("log_loss", "auc", "normalised_entropy", "calibration")
    main: ClassVar[str] = "auc"
    measure: ClassVar[str] = "AUC"

    def __init__(self) -> None:
        self._bins = np.zeros((2, NUM_BINS))  # [label, bin]: sums of weights, which are 1 unless given
        self._sums = np.zeros(2)  # of log loss in nats, of predicted probability
        self.count = 0
        self.lowest, self.highest = math.inf, -math.inf  # of the logits

    def update(self, logits: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        """Count a batch: the logits (before the sigmoid) of its samples and their labels, 0 or 1.

        A logit that is NaN or infinite raises NotFinite, a label that is neither 0 nor 1 DataError; nothing of that
        batch is then counted.
        """
        scores = np.ascontiguousarray(logits, np.float64 if logits.dtype == np.float64 else np.float32).reshape(-1)
        truth = np.ascontiguousarray(labels, np.float32).reshape(-1)
        if len(scores) != len(truth):
            raise ValueError(f"{len(scores)} logits and {len(truth)} labels: a batch has one of each for a sample")
        factors = np.empty(0) if weights is None else np.ascontiguousarray(weights, np.float64)
        bad = _update(scores, truth, factors, self._bins, self._sums)
        if bad >= 0 and not math.isfinite(scores[bad]):
            raise NotFinite(
                f"the model's output for sample {bad} of a batch of {len(scores)} is {scores[bad]}. Training has "
                "diverged or the input is not finite: lower the learning rate, look at that sample's dense features."
            )
        if bad >= 0:
            raise DataError(
                f"the label of sample {bad} of a batch of {len(truth)} is {truth[bad]:g}; allowed: 0 and 1."
            )
        self.count += len(scores)
        self._saw(float(scores.min(initial=math.inf)), float(scores.max(initial=-math.inf)))

    def merge(self, other: BinaryMetrics) -> None:
        """Count what `other` has counted as well."""
        self._bins += other._bins
        self._sums += other._sums
        self.count += other.count
        self._saw(other.lowest, other.highest)

    def _saw(self, lowest: float, highest: float) -> None:
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)

    @property
    def look_like_probabilities(self) -> bool:
        """Whether so many logits were seen, and all between 0 and 1, that they are most probably no logits."""
        return self.count >= LEAST_TO_JUDGE and 0 <= self.lowest < self.highest <= 1

    @property
    def weight(self) -> float:
        """Sum of the weights of the samples: their number where they have none."""
        return float(self._bins.sum())

    @property
    def positives(self) -> float:
        """Sum of the weights of the samples of label 1."""
        return float(self._bins[1].sum())

    @property
    def loss(self) -> float:
        return self.log_loss

    @property
    def quality(self) -> float:
        """A figure between 0 and 1 that is higher for a better model."""
        return self.auc

    @property
    def auc(self) -> float:
        """Area under the ROC curve, within `auc_error` of the exact one."""
        negatives, positives = self._bins
        below = np.cumsum(negatives) - negatives / 2
        return _ratio(float(np.sum(positives * below)), float(positives.sum() * negatives.sum()))

    @property
    def auc_error(self) -> float:
        """How far `auc` can at most be from the exact one: half the share of pairs that fall into one bin."""
        negatives, positives = self._bins
        return _ratio(float(np.sum(positives * negatives)) / 2, float(positives.sum() * negatives.sum()))

    @property
    def log_loss(self) -> float:
        """Mean of -log of the probability given to the label, in nats."""
        return _ratio(float(self._sums[0]), self.weight)

    @property
    def normalised_entropy(self) -> float:
        """`log_loss` over that of always predicting the share of positives (He et al. 2014); below 1 is better."""
        rate = _ratio(self.positives, self.weight)
        if not 0 < rate < 1:
            return math.nan
        return self.log_loss / -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))

    @property
    def against_average(self) -> float:
        return self.normalised_entropy

    @property
    def calibration(self) -> float:
        """Mean prediction over mean label: 1 is calibrated, above 1 predicts too many positives."""
        return _ratio(float(self._sums[1]), self.positives)

    @property
    def accuracy(self) -> float:
        """Share of samples whose label is the more probable class; a logit of 0 predicts label 1."""
        right = self._bins[0, : NUM_BINS // 2].sum() + self._bins[1, NUM_BINS // 2 :].sum()
        return _ratio(float(right), self.weight)

    def state(self) -> dict[str, Any]:
        """Everything counted, as JSON: only the bins that are not empty."""
        used = np.flatnonzero(self._bins.any(axis=0))
        return {
            "num_bins": NUM_BINS,
            "bins": used.tolist(),
            "negatives": self._bins[0, used].tolist(),
            "positives": self._bins[1, used].tolist(),
            "sums": self._sums.tolist(),
            "count": self.count,
            "range": [self.lowest, self.highest] if self.count else None,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The metrics that `state()` came from, to the bit."""
        if state["num_bins"] != NUM_BINS:
            raise ValueError(f"these metrics were counted in {state['num_bins']} bins, this heterps has {NUM_BINS}")
        metrics = cls()
        metrics._bins[0, state["bins"]] = state["negatives"]
        metrics._bins[1, state["bins"]] = state["positives"]
        metrics._sums[:] = state["sums"]
        metrics.count = state["count"]
        if state["range"] is not None:
            metrics.lowest, metrics.highest = state["range"]
        return metrics


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


@njit(nogil=True, cache=True)
def _update(
    logits: NDArray[Any],
    labels: NDArray[np.float32],
    weights: NDArray[np.float64],
    bins: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> int:
    """Count a batch, or nothing of it: the index of the first sample that cannot be counted, else -1.

    Without weights every sample counts 1.
    """
    for i in range(len(logits)):
        if not (np.isfinite(logits[i]) and (labels[i] == 0 or labels[i] == 1)):
            return i
    loss = predicted = 0.0
    for i in range(len(logits)):
        x, label = np.float64(logits[i]), np.int64(labels[i])
        weight = weights[i] if len(weights) else 1.0
        small = math.exp(-abs(x))  # of the negative side: never overflows
        u = 0.5 * BEND / (BEND + abs(x))
        if x >= 0:
            u = 1 - u
            predicted += weight / (1 + small)
        else:
            predicted += weight * small / (1 + small)
        bins[label, min(int(u * NUM_BINS), NUM_BINS - 1)] += weight
        loss += weight * (math.log1p(small) + max(x, 0.0) - x * label)
    sums[0] += loss
    sums[1] += predicted
    return -1
