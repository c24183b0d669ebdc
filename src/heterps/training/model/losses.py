"""What training minimises, and what metrics are of.

    model.loss(output, label)     one number for a batch, whatever it may be: such a batch cannot be divided
    model.losses(output, label)   [B], a loss a sample, whose mean is minimised: batches may be divided
    neither                       the mean cross entropy of the logits, or of the scores of the classes

A model of two classes returns a logit for each sample, [B] or [B, 1]. One that has its own loss may return more scores,
[B, n], of which the first is the logit: the metrics are those of that logit and the label. A model of n > 2 classes
returns a score for each, [B, n], whose softmax is what it predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from heterps.errors import ModelError


def is_mean_over_samples(model: nn.Module) -> bool:
    """Whether the loss of a batch is the mean of losses that its samples have each for itself."""
    return _own(model, "loss") is None


def has_own_loss(model: nn.Module) -> bool:
    """Whether it minimises something else than the cross entropy that log loss and calibration are about.

    A model whose own method gives just that says so with an attribute `loss_is_cross_entropy = True`.
    """
    return _has_method(model) and not getattr(model, "loss_is_cross_entropy", False)


def checked_output(model: nn.Module, output: Any, num_samples: int, num_classes: int = 2) -> Tensor:
    """`output` if it is what a model may return for so many samples, else a ModelError."""
    if num_classes > 2:
        return _checked_scores(output, num_samples, num_classes)
    if isinstance(output, Tensor) and output.ndim in (1, 2) and len(output) == num_samples:
        width = 1 if output.ndim == 1 else output.shape[1]
        if width == 1 or (_has_method(model) and width > 1):
            return output
    found = f"shape {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    raise ModelError(
        f"the model must return one logit for each of the {num_samples} samples; it returned {found}. "
        f"Let its forward return shape [{num_samples}] or [{num_samples}, 1]; more scores a sample need a method "
        "`losses(output, label)`."
    )


def _checked_scores(output: Any, num_samples: int, num_classes: int) -> Tensor:
    if isinstance(output, Tensor) and output.shape == (num_samples, num_classes):
        return output
    found = f"shape {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
    raise ModelError(
        f"data.columns.num_classes is {num_classes}, so the model must return a score for each class of each of the "
        f"{num_samples} samples, shape [{num_samples}, {num_classes}]; it returned {found}."
    )


def batch_loss(model: nn.Module, output: Tensor, label: Tensor) -> Tensor:
    """The loss of a whole batch, as a tensor of one number."""
    if own := _own(model, "loss"):
        loss = own(output, label)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ModelError(f"the model's method `loss` must return one number as a tensor; it returned {found}.")
        return loss
    if own := _own(model, "losses"):
        return _losses(own, output, label).mean()
    return _cross_entropy(output, label, "mean")


def piece_loss(model: nn.Module, output: Tensor, label: Tensor, num_samples: int) -> Tensor:
    """What the samples of a piece add to the mean over the `num_samples` of its batch."""
    assert is_mean_over_samples(model)
    if own := _own(model, "losses"):
        return _losses(own, output, label).sum() / num_samples
    return _cross_entropy(output, label, "sum") / num_samples


def logits_of(output: Tensor, num_classes: int = 2) -> NDArray[np.float32]:
    """What metrics are of: the logit of each sample [B], or the scores of more than two classes [B, num_classes]."""
    chosen = output if output.ndim == 1 or num_classes > 2 else output[:, 0]
    logits: NDArray[np.float32] = chosen.detach().float().numpy()
    return logits


def _cross_entropy(output: Tensor, label: Tensor, reduction: str) -> Tensor:
    if output.ndim == 2 and output.shape[1] > 1:
        return functional.cross_entropy(output.float(), label.long(), reduction=reduction)
    return functional.binary_cross_entropy_with_logits(output.reshape(label.shape).float(), label, reduction=reduction)


def _losses(own: Callable[..., Any], output: Tensor, label: Tensor) -> Tensor:
    losses = own(output, label)
    if not isinstance(losses, Tensor) or losses.shape != label.shape:
        found = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise ModelError(
            f"the model's method `losses` must return a loss for each of the {len(label)} samples; it returned "
            f"{found}. Do not reduce over samples: their mean is taken for you."
        )
    return losses


def _has_method(model: nn.Module) -> bool:
    return bool(_own(model, "loss") or _own(model, "losses"))


def _own(model: nn.Module, name: str) -> Callable[..., Any] | None:
    """A method of that name. An attribute is none: `self.loss = nn.MSELoss()` is for the model's own use."""
    return getattr(model, name) if callable(getattr(type(model), name, None)) else None
