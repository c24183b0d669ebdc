"""Metrics of predicted numbers over a stream: errors, and how much better they are than those of the mean label.

A class for each loss. `r2` is 1 - mean squared error / variance of the labels: 1 is perfect, and 0 is what always
predicting the mean label would get. The variance is merged by the rule of Chan et al., which loses no digits where the
mean is large:

    weight = a.weight + b.weight        d = b.mean - a.mean
    mean   = a.mean + d * b.weight / weight
    spread = a.spread + b.spread + d * d * a.weight * b.weight / weight      (sum of squared distances from the mean)
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from heterps.errors import DataError, NotFinite

Floats = NDArray[np.float64]


class SquaredMetrics:
    """Update it with batches, merge it with others: the same up to the rounding of float64, in any order.

    What is undefined for the samples so far is NaN: everything without samples, `r2` while all labels are equal.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("rmse", "loss", "mae", "r2", "mean_label", "mean_prediction")
    main: ClassVar[str] = "rmse"
    measure: ClassVar[str] = "R²"
    output: ClassVar[str] = "output"

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # weighted, of losses, squared errors, absolute errors, predictions, deviances
        self.weight = 0.0
        self.count = 0
        self._mean, self._spread = 0.0, 0.0  # of labels

    def predictions(self, scores: Floats) -> Floats:
        """What the model's outputs predict."""
        return scores

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        """The loss of each sample, as in training."""
        return (scores - labels) ** 2

    def deviances(self, scores: Floats, labels: Floats) -> Floats:
        """How much more likely the best prediction would have made each label: twice the difference of logarithms."""
        return (scores - labels) ** 2

    def update(self, logits: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        """Count a batch: the model's outputs for its samples and their labels.

        An output that is NaN or infinite raises NotFinite, a label that is DataError; nothing of that batch is then
        counted.
        """
        scores = np.asarray(logits, np.float64).reshape(-1)
        truth = np.asarray(labels, np.float64).reshape(-1)
        if len(scores) != len(truth):
            raise ValueError(f"{len(scores)} outputs and {len(truth)} labels: a batch has one of each for a sample")
        if not len(scores):
            return
        factors = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
        with np.errstate(over="ignore"):
            predicted = self.predictions(scores)
        if not np.isfinite(predicted).all():
            row = int(np.argmin(np.isfinite(predicted)))
            raise NotFinite(
                f"the model's {self.output} for sample {row} of a batch of {len(scores)} is {scores[row]}. Training "
                "has diverged or the input is not finite: lower the learning rate, look at that sample's dense "
                "features."
            )
        if not np.isfinite(truth).all():
            row = int(np.argmin(np.isfinite(truth)))
            raise DataError(f"the label of sample {row} of a batch of {len(truth)} is {truth[row]}: it must be finite.")
        errors = predicted - truth
        terms = (self.losses(scores, truth), errors**2, np.abs(errors), predicted, self.deviances(scores, truth))
        self._sums += [(factors * term).sum() for term in terms]
        weight = float(factors.sum())
        mean = float((factors * truth).sum()) / weight if weight else 0.0
        self._add(len(truth), weight, mean, float((factors * (truth - mean) ** 2).sum()))

    def merge(self, other: SquaredMetrics) -> None:
        """Count what `other` has counted as well."""
        self._sums += other._sums
        self._add(other.count, other.weight, other._mean, other._spread)

    def _add(self, count: int, weight: float, mean: float, spread: float) -> None:
        self.count += count
        if not weight:
            return
        distance, total = mean - self._mean, self.weight + weight
        self._spread += spread + distance**2 * self.weight * weight / total
        self._mean += distance * weight / total
        self.weight = total

    @property
    def loss(self) -> float:
        """Mean of what is minimised."""
        return self._average(0)

    @property
    def rmse(self) -> float:
        """Root of the mean squared error."""
        return math.sqrt(self._average(1))

    @property
    def mae(self) -> float:
        """Mean absolute error."""
        return self._average(2)

    @property
    def r2(self) -> float:
        """Share of the labels' variance that the predictions explain; below 0 is worse than the mean label."""
        return 1 - float(self._sums[1]) / self._spread if self._spread else math.nan

    @property
    def against_average(self) -> float:
        """Mean squared error over the variance of the labels."""
        return 1 - self.r2

    @property
    def mean_label(self) -> float:
        return self._mean if self.weight else math.nan

    @property
    def mean_prediction(self) -> float:
        return self._average(3)

    @property
    def deviance(self) -> float:
        """Mean deviance: of numbers the mean squared error, of counts that of Poisson; 0 is perfect."""
        return self._average(4)

    @property
    def quality(self) -> float:
        """A figure of at most 1 that is higher for a better model."""
        return self.r2

    def _average(self, place: int) -> float:
        return float(self._sums[place]) / self.weight if self.weight else math.nan

    def state(self) -> dict[str, Any]:
        """Everything counted, as JSON."""
        return {
            "sums": self._sums.tolist(),
            "weight": self.weight,
            "count": self.count,
            "mean": self._mean,
            "spread": self._spread,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The metrics that `state()` came from, to the bit."""
        metrics = cls()
        metrics._sums = np.array(state["sums"])
        metrics.weight, metrics.count = state["weight"], state["count"]
        metrics._mean, metrics._spread = state["mean"], state["spread"]
        return metrics


class HuberMetrics(SquaredMetrics):
    """The same figures, with Huber's loss."""

    FIELDS: ClassVar[tuple[str, ...]] = ("mae", "loss", "rmse", "r2", "mean_label", "mean_prediction")
    main: ClassVar[str] = "mae"

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        self._delta = delta

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        error = np.abs(scores - labels)
        near: Floats = np.where(error <= self._delta, error**2 / 2, self._delta * (error - self._delta / 2))
        return near

    def state(self) -> dict[str, Any]:
        return super().state() | {"delta": self._delta}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        metrics = super().from_state(state)
        metrics._delta = state["delta"]
        return metrics


class PoissonMetrics(SquaredMetrics):
    """The same figures of predicted rates, which are the powers exp(output), and Poisson's deviance."""

    FIELDS: ClassVar[tuple[str, ...]] = ("deviance", "loss", "rmse", "mae", "r2", "mean_label", "mean_prediction")
    main: ClassVar[str] = "deviance"
    output: ClassVar[str] = "output (the logarithm of a rate)"

    def predictions(self, scores: Floats) -> Floats:
        rates: Floats = np.exp(scores)
        return rates

    def losses(self, scores: Floats, labels: Floats) -> Floats:
        return np.exp(scores) - labels * scores

    def deviances(self, scores: Floats, labels: Floats) -> Floats:
        safe = np.where(labels > 0, labels, 1.0)  # 0 * log(0) is 0
        return 2 * (labels * (np.log(safe) - scores) - labels + np.exp(scores))
