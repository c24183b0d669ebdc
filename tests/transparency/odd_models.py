"""Models that have what those of the zoo have not, as factories for jobs: of dense columns a and b, slots s and t."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.nn import SparseEmbedding

SLOTS = ("s", "t")
COLUMNS = Schema(dense=("a", "b"), slots=SLOTS)


class Deep(nn.Module):
    """Layers: 0 rows, 1 cat, 2 first, 3 middle, 4 last."""

    def __init__(self, middle: nn.Module, bias: bool = True, rows: SparseEmbedding | None = None) -> None:
        super().__init__()
        self.rows = rows or SparseEmbedding(SLOTS, 4)
        self.first = nn.Linear(2 + 8, 8, bias)
        self.middle = middle
        self.last = nn.Linear(8, 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        x = torch.cat([dense, self.rows(slots).flatten(1)], dim=1)
        return self.last(self.middle(self.first(x)))


def plain() -> nn.Module:
    return Deep(nn.Tanh())


class Counting(Deep):
    """Says, in `seen`, how many samples each forward pass had."""

    seen: ClassVar[list[int]] = []

    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        self.seen.append(len(label))
        return functional.binary_cross_entropy_with_logits(output[:, 0], label, reduction="none")


def counting() -> nn.Module:
    return Counting(nn.Tanh())


def by_slot() -> nn.Module:
    return Deep(nn.Tanh(), rows=SparseEmbedding(SLOTS, 4, pooling="mean", tables="per_slot"))


def dropped() -> nn.Module:
    return Deep(nn.Dropout(0.5))


def normed() -> nn.Module:
    """Without a bias that it takes away again: its gradient would be mere rounding, of which Adam makes much."""
    return Deep(nn.BatchNorm1d(8), bias=False)


class OfSamples(Deep):
    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        return functional.softplus(-(2 * label - 1) * output[:, 0]) + 0.01 * output[:, 0] ** 2


class OfBatches(Deep):
    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        return functional.mse_loss(output[:, 0], label) + output.std()


def of_samples() -> nn.Module:
    return OfSamples(nn.Tanh())


def of_batches() -> nn.Module:
    return OfBatches(nn.Tanh())


class Tied(nn.Module):
    """`first` and `last` share a weight, `rows` is called at both ends.

    Layers: 0 first, 1 act, 2 rows, 3 middle, 4 cat, 5 joint, 6 rows#2, 7 cat, 8 back, 9 last, 10 sum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.act = nn.Tanh()
        self.rows = SparseEmbedding(SLOTS, 2)
        self.middle = nn.Linear(4, 3)
        self.joint = nn.Linear(2 + 3, 2)
        self.back = nn.Linear(2 + 4, 2)
        self.last = nn.Linear(2, 2)
        self.last.weight = self.first.weight

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        x = self.act(self.first(dense))
        joined = self.joint(torch.cat([x, self.middle(self.rows(slots).flatten(1))], dim=1))
        return self.last(self.back(torch.cat([joined, self.rows(slots).flatten(1)], dim=1))).sum(1)


class TwoHeads(Deep):
    """Layers: 0 rows, 1 cat, 2 first, 3 click, 4 middle, 5 last. The output for `click` passes through later stages."""

    def __init__(self) -> None:
        super().__init__(nn.Tanh())
        self.click = nn.Linear(8, 1)

    def forward(self, dense: Tensor, slots: Slots) -> dict[str, Tensor]:
        x = self.first(torch.cat([dense, self.rows(slots).flatten(1)], dim=1))
        return {"click": self.click(x), "rating": self.last(self.middle(x)).squeeze(1)}


class OwnHeads(TwoHeads):
    def losses(self, output: dict[str, Tensor], label: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: functional.softplus(output[name].reshape(-1) - label[name]) for name in output}


class ThreeHeads(TwoHeads):
    def forward(self, dense: Tensor, slots: Slots) -> dict[str, Tensor]:
        x = self.first(torch.cat([dense, self.rows(slots).flatten(1)], dim=1))
        rating = self.last(self.middle(x))
        return {"click": self.click(x), "rating": rating, "some": 0.1 * rating}


def two_heads() -> nn.Module:
    return TwoHeads()


def own_heads() -> nn.Module:
    return OwnHeads()


def three_heads() -> nn.Module:
    return ThreeHeads()


def four_scores() -> nn.Module:
    model = Deep(nn.Tanh())
    model.last = nn.Linear(8, 4)
    return model


def tied() -> nn.Module:
    return Tied()
