"""Buffers: what layers know besides parameters, such as running means. Names are those of the model's state_dict.

A buffer belongs to the stage whose layers use it; one that no layer uses to the last stage, as parameters do (see
stage_tables.py). One that several stages use is a copy of its own in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.model.stages import StageModule
from heterps.model.trace import Trace
from heterps.nn import weights


def model_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a checkpoint has. They share the memory of the model's."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: tensor for name, tensor in weights(model).items() if name not in parameters}


def stage_buffers(model: nn.Module, trace: Trace, stage: StageModule, *, is_last: bool) -> tuple[str, ...]:
    """The names of the buffers that belong to a stage of `model`."""
    used, placed = stage.module.state_dict(), trace.module.state_dict()
    return tuple(name for name in model_buffers(model) if name in used or (is_last and name not in placed))


def load_buffers(model: nn.Module, buffers: Mapping[str, Tensor | NDArray[Any]]) -> None:
    """Copy these into the model's own. ValueError, and no change, where it has none of that name and shape."""
    own = model_buffers(model)
    for name, values in buffers.items():
        if name not in own or own[name].shape != tuple(values.shape):
            has = f"shape {list(own[name].shape)}" if name in own else "none"
            raise ValueError(f"buffer {name} of shape {list(values.shape)}: {type(model).__name__} has {has}")
    for name, values in buffers.items():
        own[name].copy_(torch.as_tensor(values))
