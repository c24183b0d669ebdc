"""ctr_dnn: predicts the click-through rate with one embedding of all slots and a tower of fully connected layers.

The paper's network, 400 units wide; its layers at the default depth of 6, and at any depth:

    slots --> [0 embedding] --+
    dense --------------------+--> [1 cat] --> [2 linear1] --> [3 relu1] --> ... --> [12 linear6] --> [13 relu6]
                                                                                             |
                                        logit <-- [15 softmax] <-- [14 deep.scores] <--------+

    num_layers = 2 * depth + 4          depth 6: 16 layers; depth 48: 100 layers, to see how planning scales

With other widths (`hidden`) the tower ends in one logit instead, [2 * len(hidden) + 2 deep.logit]: the same family of
functions with one layer less, since the softmax of two scores is the sigmoid of their difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.kinds import whole
from heterps.model.zoo.towers import activated, need_slots, tower
from heterps.nn import SparseEmbedding

WIDTH = 400  # of the paper's fully connected layers
DEPTH = 6


def ctr_dnn(
    schema: Schema,
    embedding_dim: int = 16,
    hidden: Sequence[int] | None = None,
    depth: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Predict the click-through rate with one embedding of all slots and a tower of fully connected layers.

    hidden  widths of a tower that ends in one logit; None: the paper's tower, which ends in a softmax
    depth   number of fully connected layers of the paper's tower; None: 6
    """
    if hidden is not None and depth is not None:
        raise ModelError("ctr_dnn takes hidden (widths one by one) or depth (how many of 400 units), not both.")
    if depth is not None and depth < 1:
        raise ModelError(f"ctr_dnn: depth must be at least 1, got {depth}.")
    slots = need_slots(schema, "ctr_dnn")
    num_inputs = schema.num_dense + len(slots) * embedding_dim
    deep = tower(num_inputs, hidden) if hidden is not None else _paper_tower(num_inputs, depth or DEPTH)
    return CtrDnn(SparseEmbedding(slots, embedding_dim, seed=seed), deep)


class CtrDnn(nn.Module):
    def __init__(self, embedding: SparseEmbedding, deep: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.deep = deep

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        rows: Tensor = self.embedding(slots)
        logits: Tensor = self.deep(torch.cat([dense, rows.flatten(1)], dim=1))
        return logits.squeeze(1)


class TwoWaySoftmax(nn.Module):
    """The softmax of two scores [B, 2] as log-odds [B, 1], log(p1 / p0), which is what losses of logits take."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores[:, 1:] - scores[:, :1]


whole(TwoWaySoftmax, kind="activation")


def _paper_tower(num_inputs: int, depth: int) -> nn.Sequential:
    deep = activated(num_inputs, [WIDTH] * depth)
    deep.add_module("scores", nn.Linear(WIDTH, 2))
    deep.add_module("softmax", TwoWaySoftmax())
    return deep
