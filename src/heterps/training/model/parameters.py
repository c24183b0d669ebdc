"""The trainable parameters of a model as flat vectors, side by side in the order of their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor, nn

from heterps.arrays import FloatArray
from heterps.errors import ModelError


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by their first names, in the order of the model."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def view_parameters(parameters: Iterable[nn.Parameter], values: Tensor, grads: Tensor | None = None) -> None:
    """Make the parameters views of `values`, side by side, and their gradients, if they need any, of `grads`."""
    at = 0
    for parameter in parameters:
        view = slice(at, at + parameter.numel())
        parameter.data = values[view].view(parameter.shape)
        if grads is not None:
            parameter.grad = grads[view].view(parameter.shape)
        at = view.stop


def flat_parameters(model: nn.Module, names: Collection[str]) -> FloatArray:
    """A copy of these parameters, side by side. Raises ModelError where one cannot be trained here."""
    own = dict(model.named_parameters())
    for name in names:
        if own[name].dtype != torch.float32 or own[name].device.type != "cpu":
            raise ModelError(
                f"parameter {name} is {own[name].dtype} on {own[name].device}; heterps trains float32 on cpu here."
            )
    return torch.cat([torch.zeros(0), *(own[name].detach().reshape(-1) for name in names)]).numpy()
