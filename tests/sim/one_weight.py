"""A model of one weight, whose gradient can be worked out by hand: the loss of a sample is (w * x - label)^2 / 2. And
one with BatchNorm."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Batch, Slots


class OneWeight(nn.Module):
    def __init__(self, start: float = 0.5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([start]))

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return dense[:, :1] * self.weight

    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        return (output[:, 0] - label) ** 2 / 2


def gradient(weight: float, x: float, label: float) -> float:
    return (weight * x - label) * x


def sample(x: float, label: float) -> Batch:
    slots = Slots((), np.zeros(0, np.uint64))
    return Batch(np.array([[x]], np.float32), slots, np.array([label], np.float32))


class Normed(nn.Module):
    """A model whose evaluation needs the running statistics of BatchNorm."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(len(schema.dense), momentum=0.5)
        self.last = nn.Linear(len(schema.dense), 1)

    def forward(self, dense: Tensor, slots: object) -> Tensor:
        return self.last(self.norm(dense * 3 + 5)).squeeze(1)
