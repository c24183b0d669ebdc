"""Metrics: the figures of a job over a stream of samples, whatever its labels are.

A job with one label has figures such as `auc`; one with several has `click/auc` and `rating/rmse`, and `loss`, the sum
that is minimised. Labels that are missing count for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from heterps.errors import ConfigError
from heterps.training.metrics.ranking import RankingMetrics

HIGHER = frozenset({"auc", "accuracy", "r2", "gauc", "ndcg", "hit_rate"})
"""Figures that are better when they are higher."""
LOWER = frozenset({"loss", "log_loss", "normalised_entropy", "rmse", "mae", "deviance"})
"""Figures that are better when they are lower. Others, such as calibration, have a right value between."""


class LabelMetrics(Protocol):
    """Metrics of one label: update with batches, merge with others of the same kind."""

    FIELDS: ClassVar[tuple[str, ...]]
    """The properties that metrics.jsonl and summary.json have."""
    main: ClassVar[str]
    """The one of them that comes first."""
    measure: ClassVar[str]
    """What `quality` is: a figure of at most 1 that is higher for a better model."""
    count: int

    @property
    def weight(self) -> float: ...

    @property
    def loss(self) -> float: ...

    @property
    def quality(self) -> float: ...

    @property
    def against_average(self) -> float:
        """Error over that of always saying the average label; NaN where undefined."""

    def update(self, logits: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> None: ...

    def merge(self, other: Any) -> None: ...

    def state(self) -> dict[str, Any]: ...

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self: ...


class LabelPart(NamedTuple):
    """A label among those of a job: how many outputs of the model are for it, the factor of its loss, its metrics."""

    num_scores: int
    weight: float
    metrics: LabelMetrics
    ranking: RankingMetrics | None = None  # where samples have users, and the label can be ranked


class Metrics:
    """The metrics of all labels, by name; `main` names the one that comes first.

    Outputs and labels are arrays as `Objectives.scores` and Batch have them: for one label [n] (scores of classes:
    [n, classes]) and [n], for several their columns side by side; with `has_weight` the last column of the labels is
    the weight of the sample. A weighted mean is the sum of weight * value over the sum of weights, as in scikit-learn.
    """

    def __init__(self, parts: Mapping[str, LabelPart], main: str, *, has_weight: bool = False) -> None:
        self._parts = dict(parts)
        self._main = main
        self._has_weight = has_weight
        self.weight = 0.0  # of all samples, whether or not they have every label

    def update(self, scores: NDArray[Any], labels: NDArray[Any], users: NDArray[np.uint64] | None = None) -> None:
        """Count a batch. A value that cannot be counted raises NotFinite or DataError.

        With `users`, labels that can be ranked have figures of rankings as well.
        """
        columns, by_label = scores.reshape(len(scores), -1), labels.reshape(len(labels), -1)
        weights = by_label[:, -1] if self._has_weight else None
        at = 0
        for number, part in enumerate(self._parts.values()):
            mine, label = columns[:, at : at + part.num_scores], by_label[:, number]
            at += part.num_scores
            there = slice(None) if not (absent := np.isnan(label)).any() else ~absent
            mine = mine[there, 0] if part.num_scores == 1 else mine[there]
            of_samples = None if weights is None else weights[there]
            part.metrics.update(mine, label[there], of_samples)
            if users is not None and part.ranking is not None:
                part.ranking.update(users[there], mine, label[there], of_samples)
        self.weight += len(labels) if weights is None else float(weights.sum(dtype=np.float64))

    def merge(self, other: Metrics) -> None:
        """Count what `other` has counted as well."""
        for name, part in self._parts.items():
            part.metrics.merge(other._parts[name].metrics)
            if part.ranking is not None and (others := other._parts[name].ranking) is not None:
                part.ranking.merge(others)
        self.weight += other.weight

    @property
    def loss(self) -> float:
        """The mean loss of a sample, as it is minimised: labels that are missing add 0."""
        if not self.weight:
            return math.nan
        parts = [part for part in self._parts.values() if part.metrics.weight]
        return sum(part.weight * part.metrics.loss * part.metrics.weight for part in parts) / self.weight

    @property
    def against_average(self) -> float:
        """Error over that of always saying the average, of the label that does worst; NaN where undefined for all."""
        found = [part.metrics.against_average for part in self._parts.values()]
        return max((value for value in found if not math.isnan(value)), default=math.nan)

    @property
    def main(self) -> str:
        """The name of the figure that comes first, such as `auc` or `click/auc`."""
        return self._name(self._main, self._parts[self._main].metrics.main)

    @property
    def quality(self) -> float:
        """A figure of the main label that is at most 1, and higher for a better model; `measure` names it."""
        return self._parts[self._main].metrics.quality

    @property
    def measure(self) -> str:
        """What `quality` is: AUC, accuracy or R²."""
        return self._parts[self._main].metrics.measure

    @property
    def count(self) -> int:
        """Number of samples that have the main label."""
        return self._parts[self._main].metrics.count

    def of(self, label: str) -> LabelMetrics:
        """The metrics of one label."""
        return self._parts[label].metrics

    def __getitem__(self, name: str) -> float:
        """A figure by its name; NaN where it is undefined. KeyError for a name that is none."""
        return self.figures()[name]

    def figures(self) -> dict[str, float]:
        """All figures by name, those of the main label first; NaN where undefined."""
        names = sorted(self._parts, key=lambda name: name != self._main)
        found = {"loss": self.loss} if len(names) > 1 else {}
        for label in names:
            metrics = self._parts[label].metrics
            found |= {self._name(label, field): getattr(metrics, field) for field in metrics.FIELDS}
            if (ranking := self._parts[label].ranking) is not None and ranking.num_samples:
                found |= {self._name(label, field): value for field, value in ranking.figures().items()}
        return found

    def names(self) -> list[str]:
        """Names of all figures that an evaluation has, whose samples have users where the schema names them."""
        ranked = [(label, part.ranking) for label, part in self._parts.items() if part.ranking is not None]
        more = [self._name(label, field) for label, ranking in ranked for field in ranking.fields]
        return list(dict.fromkeys([*self.figures(), *more]))

    def fields(self) -> dict[str, float | None]:
        """The figures as metrics.jsonl and summary.json have them; null where undefined."""
        return {name: round(value, 6) if math.isfinite(value) else None for name, value in self.figures().items()}

    def _name(self, label: str, field: str) -> str:
        return field if len(self._parts) == 1 else f"{label}/{field}"

    def state(self) -> dict[str, Any]:
        """Everything counted, as JSON.

        Rankings are not in it: only evaluations have users, and no checkpoint is made in the middle of one.
        """
        return {"weight": self.weight, "labels": {name: part.metrics.state() for name, part in self._parts.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, to the bit."""
        self.weight = state["weight"]
        for name, part in self._parts.items():
            self._parts[name] = part._replace(metrics=part.metrics.from_state(state["labels"][name]))


def better(name: str, value: float, other: float) -> bool:
    """Whether `value` of the figure `name` is better than `other`; NaN is worse than any number.

    Raises ConfigError for a figure that has no better: calibration, a mean.
    """
    field = name.rpartition("/")[2].partition("@")[0]
    if field not in HIGHER | LOWER:
        known = ", ".join(sorted(HIGHER | LOWER))
        raise ConfigError(
            f"{name!r} is not a metric of which more or less is better. Take one of: {known} (of several labels with "
            "the label's name, as in click/auc)."
        )
    if math.isnan(value) or math.isnan(other):
        return math.isnan(other) and not math.isnan(value)
    return value > other if field in HIGHER else value < other
