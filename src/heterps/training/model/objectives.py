"""What training minimises, and what metrics are of.

    model.loss(output, label)     one number for a batch, whatever it may be: such a batch cannot be divided
    model.losses(output, label)   [B], a loss a sample, whose mean is minimised: batches may be divided
    neither                       the loss of each label by its kind (label_kinds.py)

With one label, output and label are tensors; with several, dicts of tensors by the names of the labels. What a sample
adds to the loss of its batch of B samples:

    weight of the sample * sum over labels of (weight of the label * loss of the label, 0 where it is missing) / B

So the divisor is the number of samples, whatever their weights and however many labels are missing, and the loss of a
batch is the sum of the losses of its pieces.

A model with a loss of its own may return more scores a sample than its label needs, [B, n]: the metrics are of the
first. It is given labels as they are, NaN where they are missing. Weights of samples multiply what `losses` returns; a
`loss` of a whole batch takes them as a third argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.errors import ModelError
from heterps.model.outputs import ends_of
from heterps.model.trace import Trace
from heterps.training.metrics.binary import BinaryMetrics
from heterps.training.metrics.metrics import LabelPart, Metrics
from heterps.training.model.label_kinds import Objective, Reduction, objective_of

Output = Tensor | Mapping[str, Tensor]
"""What a model returns: a tensor for one label, a dict by label for several."""


def is_mean_over_samples(model: nn.Module) -> bool:
    """Whether the loss of a batch is the mean of losses that its samples have each for itself."""
    return _own(model, "loss") is None


def has_own_loss(model: nn.Module) -> bool:
    """Whether it minimises something else than the losses that metrics are about.

    A model whose own method gives just that says so with an attribute `loss_is_cross_entropy = True`.
    """
    return _has_method(model) and not getattr(model, "loss_is_cross_entropy", False)


class Objectives:
    """The objectives of all labels of a schema. Labels are tensors as Batch has them."""

    def __init__(self, schema: Schema = Schema()) -> None:
        self._all = {name: objective_of(label) for name, label in schema.all_labels.items()}
        self._main = schema.label
        self._has_weight = schema.weight is not None
        self._top_k = None if schema.user is None else schema.top_k

    def metrics(self) -> Metrics:
        """Empty metrics of the labels; of rankings, too, where the schema names a column of users."""
        parts = {
            name: LabelPart(
                objective.label.num_scores,
                objective.label.weight,
                objective.metrics(),
                None if self._top_k is None else objective.ranking(self._top_k),
            )
            for name, objective in self._all.items()
        }
        return Metrics(parts, self._main, has_weight=self._has_weight)

    def doubts(self, model: nn.Module, trace: Trace) -> list[str]:
        """Sentences on outputs that are probabilities where the loss expects what is before the sigmoid or softmax."""
        ends = {} if _has_method(model) else ends_of(trace)
        return [
            _doubt(name, objective, f"end in a {end}")
            for name, objective in self._all.items()
            if (end := ends.get(name) or ends.get("")) is not None and end == objective.end
        ]

    def doubts_by_scores(self, model: nn.Module, metrics: Metrics) -> list[str]:
        """Return the doubts of a model that could not be traced, judged by what it returned."""
        if _has_method(model):
            return []
        return [
            _doubt(name, objective, "are all between 0 and 1")
            for name, objective in self._all.items()
            if isinstance(found := metrics.of(name), BinaryMetrics) and found.look_like_probabilities
        ]

    def checked(self, model: nn.Module, output: Any, num_samples: int) -> Output:
        """`output` if it is what a model may return for so many samples, else a ModelError."""
        may_be_wide = _has_method(model)
        if isinstance(output, Mapping) and output.keys() == self._all.keys():
            found = {
                name: _checked(objective, output[name], num_samples, may_be_wide, f" for {name}")
                for name, objective in self._all.items()
            }
            return found if len(found) > 1 else found[self._main]
        if len(self._all) == 1:
            return _checked(self._all[self._main], output, num_samples, may_be_wide)
        names = ", ".join(self._all)
        raise ModelError(
            f"the job has the labels {names}, so the model must return a dict with an output for each; it returned "
            f"{_described(output)}. Let its forward return {{{', '.join(f'{name!r}: ...' for name in self._all)}}}."
        )

    def loss(self, model: nn.Module, output: Output, label: Tensor, num_samples: int | None = None) -> Tensor:
        """The loss of a batch, as a tensor of one number; or what a piece adds to that of a batch of `num_samples`."""
        weight = label[:, -1] if self._has_weight else None
        labels = {name: label if label.ndim == 1 else label[:, i] for i, name in enumerate(self._all)}
        if own := _own(model, "loss"):
            assert num_samples is None, "a loss of whole batches cannot be divided"
            return _own_loss(own, output, self._given(labels), weight)
        if own := _own(model, "losses"):
            losses = self._own_losses(own, output, labels, len(label))
        elif self._is_plain:
            reduction: Reduction = "mean" if num_samples is None else "sum"
            return self._loss(self._main, output, labels[self._main], reduction) / (num_samples or 1)
        else:
            losses = self._total({name: self._masked(name, output, column) for name, column in labels.items()})
        losses = losses if weight is None else losses * weight
        return losses.mean() if num_samples is None else losses.sum() / num_samples

    def scores(self, output: Output) -> Tensor:
        """What metrics are of: the score of each sample [B], or those of its classes [B, n]; of several labels side by
        side."""
        columns = [self._scores(name, output).detach().float() for name in self._all]
        if len(columns) == 1:
            return columns[0]
        return torch.cat([column.reshape(len(column), -1) for column in columns], dim=1)

    def predictions(self, model: nn.Module, output: Output) -> dict[str, Tensor]:
        """What the model predicts, by the name of a column: `score` for the main label, `score_NAME` for each other.

        A prediction is a probability [B] for a binary label, probabilities [B, n] for classes, a value for real
        labels, a rate for counts. What a model with a loss of its own returns is left as it is.
        """
        names = [self._main, *(name for name in self._all if name != self._main)]
        found = {}
        for name in names:
            scores = self._scores(name, output).float()
            found["score" if name == self._main else f"score_{name}"] = (
                scores if has_own_loss(model) else self._all[name].prediction(scores)
            )
        return found

    @property
    def _is_plain(self) -> bool:
        """Whether torch's own mean over samples is the loss."""
        label = self._all[self._main].label
        return len(self._all) == 1 and not self._has_weight and label.weight == 1 and label.missing == "error"

    def _scores(self, name: str, output: Output) -> Tensor:
        """The outputs that are for a label: [B], or [B, n] for its classes."""
        mine = output if isinstance(output, Tensor) else output[name]
        return mine if mine.ndim == 1 or self._all[name].label.num_scores > 1 else mine[:, 0]

    def _loss(self, name: str, output: Output, label: Tensor, reduction: Reduction) -> Tensor:
        return self._all[name].loss(self._scores(name, output).float(), label, reduction)

    def _masked(self, name: str, output: Output, label: Tensor) -> Tensor:
        """The losses of samples [B] by a label, 0 where it is missing."""
        if self._all[name].label.missing == "error":
            return self._loss(name, output, label, "none")
        there = ~torch.isnan(label)
        # The label is replaced before its loss is computed: the gradient of a NaN would be NaN, whatever it is times 0.
        return self._loss(name, output, torch.where(there, label, 0.0), "none") * there

    def _total(self, losses: Mapping[str, Tensor]) -> Tensor:
        weighted = [of_label * self._all[name].label.weight for name, of_label in losses.items()]
        return torch.stack(weighted).sum(0) if len(weighted) > 1 else weighted[0]

    def _given(self, labels: dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
        """Return the labels in the form in which methods of models take them."""
        return labels if len(labels) > 1 else labels[self._main]

    def _own_losses(
        self, own: Callable[..., Any], output: Output, labels: dict[str, Tensor], num_samples: int
    ) -> Tensor:
        found = own(output, self._given(labels))
        by_label = isinstance(found, Mapping) and len(labels) > 1 and found.keys() == labels.keys()
        for losses in found.values() if by_label else (found,):
            if not isinstance(losses, Tensor) or losses.shape != (num_samples,):
                also = ", or a dict with one such tensor for each label" if len(labels) > 1 else ""
                raise ModelError(
                    f"the model's method `losses` must return a loss for each of the {num_samples} samples{also}; it "
                    f"returned {_described(losses)}. Do not reduce over samples: their mean is taken for you."
                )
        return self._total(found) if by_label else found


def _doubt(name: str, objective: Objective[Any], why: str) -> str:
    return (
        f"the model's outputs for {name} {why}, as probabilities do, but {objective.output} is expected, and the loss "
        f"applies the {objective.end} itself. Such a model learns slowly, and its log loss is wrong: return what goes "
        f"into the {objective.end}."
    )


def _checked(objective: Objective[Any], output: Any, num_samples: int, may_be_wide: bool, where: str = "") -> Tensor:
    """The output for one label, if it is what that label needs; else a ModelError."""
    needed = objective.label.num_scores
    if isinstance(output, Tensor) and len(output.shape) in (1, 2) and len(output) == num_samples:
        width = 1 if output.ndim == 1 else output.shape[1]
        if width == needed or (needed == 1 and may_be_wide and width > 1):
            return output
    if needed > 1:
        raise ModelError(
            f"num_classes is {needed}, so the model must return a score for each class of each of the {num_samples} "
            f"samples{where}, shape [{num_samples}, {needed}]; it returned {_described(output)}."
        )
    raise ModelError(
        f"the model must return {objective.output} for each of the {num_samples} samples{where}; it returned "
        f"{_described(output)}. Let its forward return shape [{num_samples}] or [{num_samples}, 1]; more scores a "
        "sample need a method `losses(output, label)`."
    )


def _own_loss(own: Callable[..., Any], output: Output, label: Any, weight: Tensor | None) -> Tensor:
    if weight is None:
        loss = own(output, label)
    elif _takes(own, 3):
        loss = own(output, label, weight)
    else:
        raise ModelError(
            "the job has weights of samples (data.columns.weight), but the model's method `loss(output, label)` does "
            "not take them. Let it take a third argument, `loss(output, label, weight)`, or return a loss for each "
            "sample from `losses(output, label)`, which are weighted for you."
        )
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ModelError(
            f"the model's method `loss` must return one number as a tensor; it returned {_described(loss)}."
        )
    return loss


def _takes(method: Callable[..., Any], number: int) -> bool:
    """Whether the method can be called with this number of arguments."""
    try:
        inspect.signature(method).bind(*range(number))
    except TypeError:
        return False
    return True


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"shape {list(value.shape)}"
    return (
        f"a dict of {', '.join(map(str, value)) or 'nothing'}" if isinstance(value, Mapping) else type(value).__name__
    )


def _has_method(model: nn.Module) -> bool:
    return bool(_own(model, "loss") or _own(model, "losses"))


def _own(model: nn.Module, name: str) -> Callable[..., Any] | None:
    """Return the method of that name. An attribute does not count: `self.loss = nn.MSELoss()` is the model's own."""
    return getattr(model, name) if callable(getattr(type(model), name, None)) else None
