"""Models that exports are tried on: one with embeddings of every kind, and some that cannot be exported."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.nn import SparseEmbedding, SparseSequence


class Mixed(nn.Module):
    """Embeddings of every kind: pooled in two ways, a table a slot, one called twice, and a sequence of shared rows."""

    def __init__(
        self, schema: Schema, pooling: str = "mean", places: int = 3, keep: str = "newest", batch_norm: bool = True
    ):
        super().__init__()
        assert schema.num_dense == 1
        self.bags = SparseEmbedding(["s", "h"], 3, pooling=pooling, init_scale=0.5)
        self.apart = SparseEmbedding(["s", "t"], 2, tables="per_slot", init_scale=0.5)
        self.alone = SparseEmbedding(["t"], 4, pooling="sum", table="shared", init_scale=0.5)
        self.past = SparseSequence("h", 4, max_length=places, keep=keep, table="shared", init_scale=0.5)
        self.norm = nn.BatchNorm1d(6 + 4 + 4 + 4 + 1) if batch_norm else nn.Identity()
        self.out = nn.Linear(6 + 4 + 4 + 4 + 1, 1)
        self.drop = nn.Dropout(0.3)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        rows, mask = self.past(slots)
        weights = (rows * self.alone(slots)).sum(2).masked_fill(~mask, 0.0)
        past = (weights.unsqueeze(2) * rows).sum(1)
        parts = [self.bags(slots).flatten(1), self.apart(slots).flatten(1), self.alone(slots).flatten(1), past, dense]
        return self.out(self.drop(self.norm(torch.cat(parts, dim=1)))).squeeze(1)


class Counts(Mixed):
    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return super().forward(dense, slots) / len(dense)


class Reads(Mixed):
    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return super().forward(dense, slots) + float(slots.keys.sum())


class Lengths(Mixed):
    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return super().forward(dense, slots) if slots.offsets is None else dense[:, 0]


class Makes(Mixed):
    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.alone(dense.round().long()).sum((1, 2))


class Branches(Mixed):
    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        out = super().forward(dense, slots)
        return out if out.sum() > 0 else -out


class Unpooled(nn.Module):
    def __init__(self, slots: tuple[str, ...]) -> None:
        super().__init__()
        self.rows = SparseEmbedding(slots, 3, pooling="none", init_scale=0.5)
        self.out = nn.Linear(3, 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.out(self.rows(slots)).reshape(dense.shape[0], -1).sum(1)


class Scaled(nn.Module):
    """It has a parameter that is a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding(["s"], 3, init_scale=0.5)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.rows(slots).sum((1, 2)) * self.scale + dense[:, 0]


class Restless(nn.Module):
    """Each of its passes gives other scores, as random numbers would."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding(["s"], 3, init_scale=0.5)
        self.out = nn.Linear(3, 1)
        self.calls = 0

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        self.calls += 1
        return self.out(self.rows(slots).flatten(1)).squeeze(1) + self.calls
