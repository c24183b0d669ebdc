"""Metrics of a classifier of more than two classes, with the manners of those of two (metrics.py), and the choice."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from heterps.errors import DataError, NotFinite
from heterps.training.run.metrics import Metrics


class AnyMetrics(Protocol):
    """Metrics over a stream: update with batches, merge with others of the same kind."""

    FIELDS: ClassVar[tuple[str, ...]]
    """The properties that metrics.jsonl and summary.json have."""

    @property
    def count(self) -> int: ...

    @property
    def log_loss(self) -> float: ...

    @property
    def accuracy(self) -> float: ...

    def update(self, logits: NDArray[Any], labels: NDArray[Any]) -> None: ...

    def merge(self, other: Any) -> None: ...

    def state(self) -> dict[str, Any]: ...


class ClassMetrics:
    """Update it with batches, merge it with others: the same samples give the same metrics, in any order.

    Counts, and with them `accuracy`, are equal to the bit; the sum behind `log_loss` up to the rounding of float64.
    What is undefined for the samples so far is NaN: everything without samples, `normalised_entropy` while only one
    class was seen.
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("log_loss", "accuracy", "normalised_entropy")

    def __init__(self, num_classes: int) -> None:
        self._seen = np.zeros(num_classes, np.int64)  # samples by label
        self._right = np.zeros(num_classes, np.int64)  # those of them whose label has the highest score
        self._loss = 0.0  # in nats

    def update(self, logits: NDArray[Any], labels: NDArray[Any]) -> None:
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
        self._loss += float((total - scores[np.arange(len(classes)), classes]).sum())
        self._seen += np.bincount(classes, minlength=num_classes)
        self._right += np.bincount(classes[right], minlength=num_classes)

    def merge(self, other: ClassMetrics) -> None:
        """Count what `other` has counted as well."""
        self._seen += other._seen
        self._right += other._right
        self._loss += other._loss

    @property
    def count(self) -> int:
        return int(self._seen.sum())

    @property
    def accuracy(self) -> float:
        """Share of samples whose label has the highest score; of equal scores the lowest class has it."""
        return int(self._right.sum()) / self.count if self.count else math.nan

    @property
    def log_loss(self) -> float:
        """Mean of -log of the probability given to the label, in nats."""
        return self._loss / self.count if self.count else math.nan

    @property
    def normalised_entropy(self) -> float:
        """`log_loss` over that of always predicting the share of each class; below 1 is better."""
        share = self._seen[self._seen > 0] / max(self.count, 1)
        return self.log_loss / float(-(share * np.log(share)).sum()) if len(share) > 1 else math.nan

    def state(self) -> dict[str, Any]:
        """Everything counted, as JSON."""
        return {
            "num_classes": len(self._seen),
            "seen": self._seen.tolist(),
            "right": self._right.tolist(),
            "loss": self._loss,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The metrics that `state()` came from, to the bit."""
        metrics = cls(state["num_classes"])
        metrics._seen[:] = state["seen"]
        metrics._right[:] = state["right"]
        metrics._loss = state["loss"]
        return metrics


def make_metrics(num_classes: int = 2) -> AnyMetrics:
    """Empty metrics for labels of so many classes."""
    return Metrics() if num_classes == 2 else ClassMetrics(num_classes)


def metrics_from_state(state: dict[str, Any]) -> AnyMetrics:
    """The metrics, of either kind, that `state()` came from."""
    return ClassMetrics.from_state(state) if "num_classes" in state else Metrics.from_state(state)
