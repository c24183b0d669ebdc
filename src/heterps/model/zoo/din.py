"""din: Deep Interest Network (Zhou et al., KDD 2018): how much each item of a history matters for this item.

    item ------> [0 items]   t [B, dim] -----------+-------------------------------+
    history ---> [1 history] h [B, L, dim], mask --+--> [2 attention] interest ----+
    others ----> [3 context] ------------------------------------------------------+--> [4 cat] --> [5 deep.linear1]
    dense -------------------------------------------------------------------------+      ... [9 deep.logit] --> logit

    weight of place l = unit(h_l, t, h_l - t, h_l * t): a small network, the same for all places
    interest          = sum of weight * h over the places of the mask

Weights are not normalised, as in the paper: a long history of the same kind is a strong interest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.model.kinds import whole
from heterps.model.zoo.history import HistoryModel
from heterps.model.zoo.towers import tower


def din(
    schema: Schema,
    embedding_dim: int = 16,
    item: str | None = None,
    history: str | None = None,
    max_length: int = 50,
    attention: Sequence[int] = (80, 40),
    hidden: Sequence[int] = (200, 80),
    seed: int = 0,
) -> nn.Module:
    """Predict whether an item is taken after a history of items, each weighted by what it says about this item.

    item, history  their slots, which hold the same ids; None: the schema's last two. All other slots are context
    max_length     number of items of a history that are looked at: its newest, which are last
    attention      widths of the network that weighs an item of the history
    hidden         widths of the tower
    """
    return Din(schema, embedding_dim, item, history, max_length, attention, hidden, seed)


class Din(HistoryModel):
    def __init__(
        self,
        schema: Schema,
        dim: int,
        item: str | None,
        history: str | None,
        max_length: int,
        attention: Sequence[int],
        hidden: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__(schema, "din", item, history, dim, max_length, hidden, dim, seed)
        self.attention = TargetAttention(dim, attention)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        target = self.items(slots).squeeze(1)
        rows, mask = self.history(slots)
        return self.logits(dense, slots, target, self.attention(target, rows, mask))


class TargetAttention(nn.Module):
    """The sum of the rows of a history, each times the weight that a small network gives it beside the target."""

    def __init__(self, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.unit = tower(4 * dim, hidden)

    def forward(self, target: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        beside = target.unsqueeze(1).expand_as(rows)
        weights = self.unit(torch.cat([rows, beside, rows - beside, rows * beside], dim=2)).squeeze(2)
        interest: Tensor = weights.masked_fill(~mask, 0.0).unsqueeze(1) @ rows
        return interest.squeeze(1)


whole(TargetAttention, kind="attention")
