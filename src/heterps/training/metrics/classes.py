"""Metrics of a classifier of more than two classes, over a stream as those of two (binary.py)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from heterps.errors import DataError, NotFinite


class ClassMetrics:
    """Update it with batches, merge it with others: the same samples give the same metrics, in any order.

    Counts, and with them `accuracy`, are equal to the bit, unless samples have weights; the sum behind `log_loss` up to
    the rounding of float64.
    What is undefined for the samples so far is NaN: everything without samples, `normalised_entropy` while only one
    class was seen.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("log_loss", "accuracy", "normalised_entropy")
    main: ClassVar[str] = "accuracy"
    measure: ClassVar[str] = "accuracy"

    def __init__(self, num_classes: int) -> None:
        self._seen = np.zeros(num_classes)  # sum of weights, which are 1 unless given, by label
        self._right = np.zeros(num_classes)  # of those samples whose label has the highest score
        self._loss = 0.0  # in nats
        self.count = 0

    def update(self, logits: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        """Count a batch: scores [n, number of classes], before the softmax, and labels from 0 on.

        A score that is NaN or infinite raises NotFinite, a label that is no class DataError; nothing of that batch is
        then counted.
        """
        scores, truth = np.asarray(logits, np.float64), np.asarray(labels).reshape(-1)
        num_classes = len(self._seen)
        if scores.shape != (len(truth), num_classes):
            raise ValueError(f"scores {list(scores.shape)} and {len(truth)} labels of {num_classes} classes do not fit")
        if len(bad := np.argwhere(~np.isfinite(scores))):
            row, column = bad[0].tolist()
            raise NotFinite(
                f"the model's score of class {column} for sample {row} of a batch of {len(truth)} is "
                f"{scores[row, column]}. Training has diverged or the input is not finite: lower the learning rate, "
                "look at that sample's dense features."
            )
        wrong = ~((truth >= 0) & (truth < num_classes) & (truth == np.floor(truth)))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"the label of sample {row} of a batch of {len(truth)} is {truth[row]:g}; "
                f"allowed: 0 to {num_classes - 1}."
            )
        classes = truth.astype(np.int64)
        right = scores.argmax(axis=1) == classes
        highest = scores.max(axis=1, initial=-np.inf, keepdims=True)  # so that no power overflows
        total = np.log(np.exp(scores - highest).sum(axis=1)) + highest[:, 0]
        factors = np.ones(len(classes)) if weights is None else np.asarray(weights, np.float64)
        self._loss += float((factors * (total - scores[np.arange(len(classes)), classes])).sum())
        self._seen += np.bincount(classes, factors, num_classes)
        self._right += np.bincount(classes[right], factors[right], num_classes)
        self.count += len(classes)

    def merge(self, other: ClassMetrics) -> None:
        """Count what `other` has counted as well."""
        self._seen += other._seen
        self._right += other._right
        self._loss += other._loss
        self.count += other.count

    @property
    def weight(self) -> float:
        """Sum of the weights of the samples: their number where they have none."""
        return float(self._seen.sum())

    @property
    def loss(self) -> float:
        return self.log_loss

    @property
    def quality(self) -> float:
        """A figure between 0 and 1 that is higher for a better model."""
        return self.accuracy

    @property
    def accuracy(self) -> float:
        """Share of samples whose label has the highest score; of equal scores the lowest class has it."""
        return float(self._right.sum()) / self.weight if self.weight else math.nan

    @property
    def log_loss(self) -> float:
        """Mean of -log of the probability given to the label, in nats."""
        return self._loss / self.weight if self.weight else math.nan

    @property
    def normalised_entropy(self) -> float:
        """`log_loss` over that of always predicting the share of each class; below 1 is better."""
        share = self._seen[self._seen > 0] / self.weight
        return self.log_loss / float(-(share * np.log(share)).sum()) if len(share) > 1 else math.nan

    @property
    def against_average(self) -> float:
        return self.normalised_entropy

    def state(self) -> dict[str, Any]:
        """Everything counted, as JSON."""
        return {
            "num_classes": len(self._seen),
            "seen": self._seen.tolist(),
            "right": self._right.tolist(),
            "loss": self._loss,
            "count": self.count,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The metrics that `state()` came from, to the bit."""
        metrics = cls(state["num_classes"])
        metrics._seen[:] = state["seen"]
        metrics._right[:] = state["right"]
        metrics._loss = state["loss"]
        metrics.count = state["count"]
        return metrics
