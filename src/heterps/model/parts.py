"""Modules of torch.nn that are traced into their parts: a transformer encoder, whose blocks may be in different stages.

torch.fx takes a module of torch.nn as one step, and cannot follow the forward of an encoder, which looks at its inputs
to choose a fused kernel for evaluation. Here is what they compute while they train, as calls of their own modules:

    x --> self_attn --> dropout1 --> + x --> norm1 --> linear1 --> activation --> dropout --> linear2 --> dropout2 ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn


def parts_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return a forward of the module that calls its parts, if it is an encoder with the forward of torch.nn."""
    for kind, forward in _FORWARDS.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return partial(forward, module)
    return None


def _encoder(
    encoder: nn.TransformerEncoder,
    src: Tensor,
    mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool | None = None,
) -> Tensor:
    for layer in encoder.layers:
        src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
    if encoder.norm is not None:
        src = encoder.norm(src)
    return src


def _encoder_layer(
    layer: nn.TransformerEncoderLayer,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    def attend(x: Tensor) -> Tensor:
        return layer._sa_block(x, src_mask, src_key_padding_mask, is_causal=is_causal)

    if layer.norm_first:
        src = src + attend(layer.norm1(src))
        src = src + layer._ff_block(layer.norm2(src))
    else:
        src = layer.norm1(src + attend(src))
        src = layer.norm2(src + layer._ff_block(src))
    return src


_FORWARDS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.TransformerEncoder: _encoder,
    nn.TransformerEncoderLayer: _encoder_layer,
}
