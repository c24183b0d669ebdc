"""A model as a user writes it: a history in order, a table for two modules, and an output for each of three labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heterps.nn import Slots, SparseEmbedding, SparseSequence


class Feed(nn.Module):
    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.rows = SparseEmbedding(["user", "item"], dim)
        self.history = SparseSequence("history", dim, max_length=5, table="rows")
        self.shared = nn.Linear(3 * dim + 2, 8)
        self.drop = nn.Dropout(0.2)
        self.click = nn.Linear(8, 1)
        self.stars = nn.Linear(8, 1)
        self.kind = nn.Linear(8, 3)

    def forward(self, dense: Tensor, slots: Slots) -> dict[str, Tensor]:
        history, mask = self.history(slots)
        seen = history.sum(1) / (1 + mask.sum(1, keepdim=True))
        x = self.drop(torch.relu(self.shared(torch.cat([self.rows(slots).flatten(1), seen, dense], 1))))
        return {"click": self.click(x), "stars": self.stars(x), "kind": self.kind(x)}
