"""The five models in plain PyTorch: nn.Embedding, torch's optimizers, a loop. Nothing here comes from heterps.

    files --> encode --> Data (train, test) --> fit(model, train) --> predict(model, test)

Ids become places in one embedding. A column belongs to a group, of which each id has one place: a list of items and an
item are of one group. Place 0 is for ids that the training rows do not have, and fills lists up to one length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Columns = dict[str, NDArray[Any]]


@dataclass
class Data:
    """Rows as tensors: numbers [N, D], places of ids [N, S], places of a list [N, L], labels [N]."""

    dense: Tensor
    ids: Tensor
    lists: Tensor
    label: Tensor

    def rows(self, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.dense[which], self.ids[which], self.lists[which]


def encode(columns: Columns, train: Columns, groups: dict[str, str], numbers: list[str], label: str) -> Data:
    """Turn columns into tensors, with the places and the mean and deviation of numbers that the training rows give."""
    known = {group: _distinct([train[name] for name in groups if groups[name] == group]) for group in groups.values()}
    starts = dict(zip(known, np.cumsum([1, *map(len, known.values())]), strict=False))

    def places(values: NDArray[Any], group: str) -> NDArray[np.int64]:
        found = np.minimum(np.searchsorted(known[group], values), len(known[group]) - 1)
        return np.where(known[group][found] == values, starts[group] + found, 0)

    ids = [places(columns[name], groups[name]) for name in groups if columns[name].dtype != object]
    lists = [[places(row, groups[name]) for row in columns[name]] for name in groups if columns[name].dtype == object]
    padded = np.zeros((len(columns[label]), max((len(row) for row in lists[0]), default=0) if lists else 0), np.int64)
    for row, found in zip(padded, lists[0] if lists else (), strict=False):
        row[: len(found)] = found
    scaled = [(columns[name] - np.nanmean(train[name])) / np.nanstd(train[name]) for name in numbers]
    dense = np.nan_to_num(np.stack(scaled, axis=1)) if scaled else np.zeros((len(columns[label]), 0))
    return Data(
        torch.from_numpy(dense.astype(np.float32)),
        torch.from_numpy(np.stack(ids, axis=1)),
        torch.from_numpy(padded),
        torch.from_numpy(columns[label].astype(np.float32)),
    )


def num_places(data: Data) -> int:
    return 1 + int(max(data.ids.max(), data.lists.max() if data.lists.numel() else 0))


def _distinct(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return np.unique(np.concatenate([np.concatenate(c) if c.dtype == object else c for c in columns]))


# --- models: called with numbers, ids and a list ---------------------------------------------------------------------


def embedding(num: int, dim: int, scale: float = 0.01) -> nn.Embedding:
    made = nn.Embedding(num, dim, sparse=True)
    nn.init.uniform_(made.weight, -scale, scale)
    return made


def layers(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation after each but the last."""
    made: list[nn.Module] = []
    for width, following in pairwise(widths):
        made += [nn.Linear(width, following), activation()]
    return nn.Sequential(*made[:-1])


class Deep(nn.Module):
    """Embeddings and numbers under a tower."""

    def __init__(self, data: Data, dim: int) -> None:
        super().__init__()
        self.table = embedding(num_places(data), dim)
        self.tower = layers(data.dense.shape[1] + data.ids.shape[1] * dim, 64, 32, 1)

    def forward(self, dense: Tensor, ids: Tensor, _: Tensor) -> Tensor:
        return self.tower(torch.cat([dense, self.table(ids).flatten(1)], 1))[:, 0]


class FactorizationMachine(nn.Module):
    """DeepFM; a list counts as one more id, whose row is the sum of its rows."""

    def __init__(self, data: Data, dim: int) -> None:
        super().__init__()
        self.table = embedding(num_places(data), 1 + dim)
        self.linear = nn.Linear(data.dense.shape[1], 1)
        slots = data.ids.shape[1] + bool(data.lists.shape[1])
        self.tower = layers(data.dense.shape[1] + slots * dim, 64, 32, 1)

    def forward(self, dense: Tensor, ids: Tensor, lists: Tensor) -> Tensor:
        rows = self.table(ids)
        if lists.shape[1]:
            bag = (self.table(lists) * (lists > 0).unsqueeze(2)).sum(1, keepdim=True)
            rows = torch.cat([rows, bag], 1)
        weights, vectors = rows[:, :, 0], rows[:, :, 1:]
        products = torch.einsum("bsd,btd->bst", vectors, vectors)
        pairs = torch.triu(products, diagonal=1).sum((1, 2))
        deep = self.tower(torch.cat([dense, vectors.flatten(1)], 1))[:, 0]
        return self.linear(dense)[:, 0] + weights.sum(1) + pairs + deep


class TwoTowers(nn.Module):
    """cos(user, item) - cos(user, negative); ids are user, segment, item, category, negative, negative category."""

    def __init__(self, data: Data, dim: int) -> None:
        super().__init__()
        self.table = embedding(num_places(data), dim)
        self.user = nn.Sequential(layers(2 * dim, 64, 32, activation=nn.Tanh), nn.Tanh())
        self.item = nn.Sequential(layers(2 * dim, 64, 32, activation=nn.Tanh), nn.Tanh())

    def forward(self, _: Tensor, ids: Tensor, __: Tensor) -> Tensor:
        user, item, negative = (self.table(ids[:, i : i + 2]).flatten(1) for i in (0, 2, 4))
        vector = self.user(user)
        return functional.cosine_similarity(vector, self.item(item)) - functional.cosine_similarity(
            vector, self.item(negative)
        )


class Interest(nn.Module):
    """DIN: each item of the list has a weight beside the target; ids are user and item."""

    def __init__(self, data: Data, dim: int) -> None:
        super().__init__()
        self.users = embedding(num_places(data), dim)
        self.table = embedding(num_places(data), dim, dim**-0.5)
        self.weigh = layers(4 * dim, 80, 40, 1)
        self.tower = layers(3 * dim, 64, 32, 1)

    def forward(self, _: Tensor, ids: Tensor, lists: Tensor) -> Tensor:
        user, item = self.users(ids[:, 0]), self.table(ids[:, 1])
        past = self.table(lists)
        target = item.unsqueeze(1).expand_as(past)
        weight = self.weigh(torch.cat([past, target, past - target, past * target], 2)) * (lists > 0).unsqueeze(2)
        return self.tower(torch.cat([user, item, (weight * past).sum(1)], 1))[:, 0]


# --- the loop --------------------------------------------------------------------------------------------------------

Loss = Callable[[Tensor, Tensor], Tensor]


def hinge(output: Tensor, label: Tensor) -> Tensor:
    return torch.clamp(0.8 - torch.where(label > 0.5, output, -output), min=0).mean()


def fit(model: nn.Module, data: Data, loss: Loss, batch_size: int, epochs: int) -> None:
    """Train with Adagrad for embeddings and Adam for the rest."""
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    others = [p for p in model.parameters() if all(p is not table for table in tables)]
    optimizers = [torch.optim.Adagrad(tables, lr=0.05), torch.optim.Adam(others, lr=0.002)]
    for _ in range(epochs):
        for which in torch.randperm(len(data.label)).split(batch_size):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss(model(*data.rows(which)), data.label[which]).backward()
            for optimizer in optimizers:
                optimizer.step()


def predict(model: nn.Module, data: Data) -> NDArray[np.float32]:
    with torch.no_grad():
        parts = [model(*data.rows(which)) for which in torch.arange(len(data.label)).split(4096)]
    return np.asarray(torch.cat(parts).numpy())
