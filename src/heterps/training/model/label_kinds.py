"""Kinds of labels: what the model returns for each, its loss, and its metrics.

    kind of label    the model returns     loss of a sample                         figures
    binary           a logit               binary cross entropy                     AUC, log loss, ...
    classes          a score a class       cross entropy of the softmax             accuracy, log loss, ...
    mse              a prediction          squared error                            RMSE, MAE, R², ...
    huber            a prediction          Huber's, linear beyond delta             MAE, RMSE, R², ...
    poisson          log of a rate         exp(output) - label * output             deviance, RMSE, MAE, ...

What a user of the model gets is its prediction: a probability, a probability of each class, a value, a rate.

A new kind is a class in config/labels.py and one here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor
from torch.nn import functional

from heterps.config.labels import (
    AnyLabel,
    BinaryLabel,
    ClassLabel,
    HuberLabel,
    PoissonLabel,
    SquaredLabel,
)
from heterps.training.metrics.binary import BinaryMetrics
from heterps.training.metrics.classes import ClassMetrics
from heterps.training.metrics.metrics import LabelMetrics
from heterps.training.metrics.ranking import RankingMetrics
from heterps.training.metrics.real import HuberMetrics, PoissonMetrics, SquaredMetrics

Reduction = Literal["none", "mean", "sum"]
L = TypeVar("L", bound=AnyLabel)


class Objective(ABC, Generic[L]):
    """What the model is trained for by one label."""

    output: str = "one prediction"
    end: str | None = None
    """The function of the output that the loss applies itself, so that a model should not end in it."""

    def __init__(self, label: L) -> None:
        self.label = label

    @abstractmethod
    def loss(self, output: Tensor, label: Tensor, reduction: Reduction) -> Tensor:
        """The losses of samples [n], or their mean or sum. The output is [n], or [n, classes]."""

    def prediction(self, output: Tensor) -> Tensor:
        """What the output says in the unit of the label: a probability, a value, a rate."""
        return output

    @abstractmethod
    def metrics(self) -> LabelMetrics:
        """Make empty metrics for the label."""

    def ranking(self, top_k: Sequence[int]) -> RankingMetrics | None:
        """Make empty metrics of rankings by user; None where scores give no order."""
        return RankingMetrics(top_k, is_binary=False)


class Binary(Objective[BinaryLabel]):
    output = "one logit"
    end = "sigmoid"

    def loss(self, output: Tensor, label: Tensor, reduction: Reduction) -> Tensor:
        return functional.binary_cross_entropy_with_logits(output, label, reduction=reduction)

    def prediction(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    def metrics(self) -> LabelMetrics:
        return BinaryMetrics()

    def ranking(self, top_k: Sequence[int]) -> RankingMetrics | None:
        return RankingMetrics(top_k)


class Classes(Objective[ClassLabel]):
    output = "a score for each class"
    end = "softmax"

    def loss(self, output: Tensor, label: Tensor, reduction: Reduction) -> Tensor:
        return functional.cross_entropy(output, label.long(), reduction=reduction)

    def prediction(self, output: Tensor) -> Tensor:
        return output.softmax(dim=1)

    def metrics(self) -> LabelMetrics:
        return ClassMetrics(self.label.num_classes)

    def ranking(self, top_k: Sequence[int]) -> RankingMetrics | None:  # noqa: ARG002
        return None


class Squared(Objective[SquaredLabel]):
    def loss(self, output: Tensor, label: Tensor, reduction: Reduction) -> Tensor:
        return functional.mse_loss(output, label, reduction=reduction)

    def metrics(self) -> LabelMetrics:
        return SquaredMetrics()


class Huber(Objective[HuberLabel]):
    def loss(self, output: Tensor, label: Tensor, reduction: Reduction) -> Tensor:
        return functional.huber_loss(output, label, reduction=reduction, delta=self.label.delta)

    def metrics(self) -> LabelMetrics:
        return HuberMetrics(self.label.delta)


class Poisson(Objective[PoissonLabel]):
    output = "one logarithm of a rate"

    def loss(self, output: Tensor, label: Tensor, reduction: Reduction) -> Tensor:
        return functional.poisson_nll_loss(output, label, log_input=True, reduction=reduction)

    def prediction(self, output: Tensor) -> Tensor:
        return output.exp()

    def metrics(self) -> LabelMetrics:
        return PoissonMetrics()


_OBJECTIVES: Mapping[type[AnyLabel], type[Objective[Any]]] = {
    BinaryLabel: Binary,
    ClassLabel: Classes,
    SquaredLabel: Squared,
    HuberLabel: Huber,
    PoissonLabel: Poisson,
}


def objective_of(label: AnyLabel) -> Objective[Any]:
    """The objective for a label of a job."""
    return _OBJECTIVES[type(label)](label)
