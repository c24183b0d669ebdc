"""Models that are ready to train. Each is a factory: `model = ctr_dnn(schema)`, called as `model(dense, slots)`.

`dense` is float32 [B, number of dense columns], `slots` the sparse part of the same B samples, the result B logits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.kinds import whole
from heterps.nn import SparseEmbedding


def ctr_dnn(
    schema: Schema, embedding_dim: int = 16, hidden: Sequence[int] = (512, 256, 128), seed: int = 0
) -> nn.Module:
    """Click-through rate by one embedding of all slots and a tower of fully connected layers."""
    return CtrDnn(_slots(schema, "ctr_dnn"), len(schema.dense), embedding_dim, hidden, seed)


def deepfm(
    schema: Schema, embedding_dim: int = 16, hidden: Sequence[int] = (512, 256, 128), seed: int = 0
) -> nn.Module:
    """DeepFM (Guo et al., IJCAI 2017): a factorization machine and a tower over the same embedding, added up."""
    return DeepFM(_slots(schema, "deepfm"), len(schema.dense), embedding_dim, hidden, seed)


ZOO: dict[str, Callable[..., nn.Module]] = {"ctr_dnn": ctr_dnn, "deepfm": deepfm}


class CtrDnn(nn.Module):
    def __init__(self, slots: Sequence[str], num_dense: int, dim: int, hidden: Sequence[int], seed: int) -> None:
        super().__init__()
        self.embedding = SparseEmbedding(slots, dim, seed=seed)
        self.deep = tower(num_dense + len(slots) * dim, hidden)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        rows: Tensor = self.embedding(slots)
        logits: Tensor = self.deep(torch.cat([dense, rows.flatten(1)], dim=1))
        return logits.squeeze(1)


class DeepFM(nn.Module):
    """logit = b + w.dense + sum_s w_s  +  sum_{s<t} <v_s, v_t>  +  tower(dense, v)

    where slot s of a sample has the row (w_s, v_s): its first-order weight and its vector share one table, so that a
    key is looked up once.
    """

    def __init__(self, slots: Sequence[str], num_dense: int, dim: int, hidden: Sequence[int], seed: int) -> None:
        super().__init__()
        self.embedding = SparseEmbedding(slots, 1 + dim, seed=seed)
        self.first_order = nn.Linear(num_dense, 1)
        self.pairs = PairwiseSum(dim)
        self.deep = tower(num_dense + len(slots) * dim, hidden)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        rows: Tensor = self.embedding(slots)
        weights, vectors = rows[:, :, 0], rows[:, :, 1:].flatten(1)
        first = self.first_order(dense).squeeze(1) + weights.sum(1)
        second = self.pairs(vectors)
        deep = self.deep(torch.cat([dense, vectors], dim=1)).squeeze(1)
        logits: Tensor = first + second + deep
        return logits


class PairwiseSum(nn.Module):
    """sum_{s<t} <v_s, v_t> of S vectors in a row [B, S * dim]: half of (the squared sum less the sum of squares)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, vectors: Tensor) -> Tensor:
        total = vectors.view(len(vectors), -1, self.dim).sum(1)
        return 0.5 * (total.square().sum(1) - vectors.square().sum(1))


whole(PairwiseSum, kind="interaction")  # a handful of tiny steps that nobody would place apart


def tower(num_inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Fully connected layers with ReLU between them, down to one logit."""
    layers: list[tuple[str, nn.Module]] = []
    for i, width in enumerate(hidden, start=1):
        layers += [(f"linear{i}", nn.Linear(num_inputs, width)), (f"relu{i}", nn.ReLU())]
        num_inputs = width
    return nn.Sequential(OrderedDict([*layers, ("logit", nn.Linear(num_inputs, 1))]))


def _slots(schema: Schema, model: str) -> tuple[str, ...]:
    if not schema.slots:
        raise ModelError(
            f"{model} embeds ids, but the schema names no slots: add columns of ids to data.columns.slots."
        )
    return schema.slots
