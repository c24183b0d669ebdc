"""A model as a user writes it: plain PyTorch, with rows of embeddings on tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heterps.nn import Slots, SparseEmbedding


class Tower(nn.Module):
    def __init__(self, dim: int = 4, num_dense: int = 1) -> None:
        super().__init__()
        self.rows = SparseEmbedding(["user_id", "item_id"], dim)
        self.last = nn.Linear(2 * dim + num_dense, 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.last(torch.cat([self.rows(slots).flatten(1), dense], 1)).squeeze(1)


def make_tower(dim: int) -> Tower:
    return Tower(dim)
