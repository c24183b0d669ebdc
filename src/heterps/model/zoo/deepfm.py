"""deepfm (Guo et al., IJCAI 2017): a factorization machine and a tower over the same embedding, added up.

    slots --> [0 embedding] --+-- weights -----------------> [2 sum] --+
                              |                                        v
    dense --> [1 first_order] | ------------------------------------> [3 add] ----> [13 add] --> [14 add] --> logit
                              +-- vectors --> [4 pairs] ----------------------------^            ^
                              +-- and dense --> [5 cat] --> [6 deep.linear1] ... [12 deep.logit] +

Layers at the default three widths of the tower; weights and vectors are the parts of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.model.kinds import whole
from heterps.model.zoo.towers import need_slots, tower
from heterps.nn import SparseEmbedding


def deepfm(
    schema: Schema, embedding_dim: int = 16, hidden: Sequence[int] = (512, 256, 128), seed: int = 0
) -> nn.Module:
    """DeepFM (Guo et al., IJCAI 2017): a factorization machine and a tower over the same embedding, added up."""
    return DeepFM(need_slots(schema, "deepfm"), schema.num_dense, embedding_dim, hidden, seed)


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
        total = vectors.view(vectors.shape[0], -1, self.dim).sum(1)
        return 0.5 * (total.square().sum(1) - vectors.square().sum(1))


whole(PairwiseSum, kind="interaction")  # a handful of tiny steps that nobody would place apart
