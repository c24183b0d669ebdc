"""match_net: predicts which of two items a user prefers, with two towers and a cosine similarity.

    user slots -----> [0 user] --> [1 linear1] [2 tanh1] [3 linear2] [4 tanh2] [5 linear3] [6 tanh3] --+   user_tower
                                        300                   300                   128                |
                                                                                                       v
                                                                                                [14 similarity]
                                                                                                       ^
    item slots -----> [7 item] --> [8 linear1] [9 tanh1] [10 linear2] [11 tanh2] [12 linear3] [13 tanh3]   item_tower
    negative slots -->                  300                   300                    128          2 vectors a sample

    logit = [15 sub] = cos(user, item) - cos(user, negative)            loss = max(0, 0.8 - logit) where label = 1

The item tower also serves the negative item: the same rows, the same weights. Both items go through each of its layers
together, so that no weight is shared between layers that a plan could place on different resources.

The label says which item the user took: 1 the item, 0 the negative one, whose loss is then max(0, 0.8 + logit). Data
that always names the taken item first has label 1 throughout. The negative item is a column of its own and not, say,
the next sample's item: then samples do not depend on one another, and a batch may be divided in any way.

Once trained, the towers are used apart: `user_vector` and `item_vector` give vectors of length 1.

Towers after DSSM (Huang et al., CIKM 2013): 300-300-128, tanh after each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.zoo.towers import activated, need_columns, need_same_ids, need_slots
from heterps.nn import SparseEmbedding

MARGIN = 0.8
COLUMNS = Schema(
    dense=(),
    slots=("user", "segment", "item", "category", "negative", "negative_category"),
    same_ids={"negative": "item", "negative_category": "category"},
)


def match_net(
    schema: Schema,
    embedding_dim: int = 16,
    user: Sequence[str] | None = None,
    item: Sequence[str] | None = None,
    negative: Sequence[str] | None = None,
    hidden: Sequence[int] = (300, 300, 128),
    margin: float = MARGIN,
    seed: int = 0,
) -> nn.Module:
    """A user tower and an item tower, trained on pairs of items with a pairwise hinge loss. Dense columns are not read.

    user, item, negative  their slots; those of `negative` are in the order of `item` and hold its ids. None: the last
                          third of the schema's slots is the negative item, the third before it the item
    """
    groups = _groups(schema, user, item, negative)
    need_same_ids(schema, "match_net", list(zip(groups[2], groups[1], strict=True)))
    return MatchNet(*groups, embedding_dim, hidden, margin, seed)


class MatchNet(nn.Module):
    def __init__(
        self,
        user: Sequence[str],
        item: Sequence[str],
        negative: Sequence[str],
        dim: int,
        hidden: Sequence[int],
        margin: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.margin = margin
        self.user = SparseEmbedding(user, dim, seed=seed)
        self.user_tower = activated(len(user) * dim, hidden, nn.Tanh)
        self.item = SparseEmbedding([*item, *negative], dim, seed=seed)
        self.item_tower = activated(len(item) * dim, hidden, nn.Tanh)
        self.similarity = nn.CosineSimilarity(dim=2)
        self._item_values = len(item) * dim
        self._copies = dict(zip(negative, item, strict=True))

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:  # noqa: ARG002
        users = self.user_tower(self.user(slots).flatten(1)).unsqueeze(1)  # [B, 1, width]
        both = self.item(slots).reshape(-1, 2, self._item_values)
        cosines = self.similarity(users, self.item_tower(both))  # [B, 2]
        logits: Tensor = cosines[:, 0] - cosines[:, 1]
        return logits

    def user_vector(self, dense: Tensor, slots: Slots) -> Tensor:  # noqa: ARG002
        """The vectors of users [B, width], of length 1; the product of one with an item's is their cosine."""
        return functional.normalize(self.user_tower(self.user(slots).flatten(1)), dim=1)

    def item_vector(self, dense: Tensor, slots: Slots) -> Tensor:  # noqa: ARG002
        """The vectors of items [B, width], of length 1. Slots of negative items are not needed."""
        both = self.item(slots.with_copies(self._copies)).reshape(-1, 2, self._item_values)
        return functional.normalize(self.item_tower(both[:, 0]), dim=1)

    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        """The pairwise hinge loss of each sample [B]."""
        return torch.relu(self.margin - (2 * label - 1) * output)


def _groups(
    schema: Schema, user: Sequence[str] | None, item: Sequence[str] | None, negative: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    if user is None and item is None and negative is None:
        slots = need_slots(schema, "match_net", 3, "of the user, of the item, of the negative item")
        third = len(slots) // 3
        return slots[: -2 * third], slots[-2 * third : -third], slots[-third:]
    if user is None or item is None or negative is None:
        raise ModelError("match_net: name the slots of user, item and negative together, or none of them.")
    named = {"user": user, "item": item, "negative": negative}
    users, items, negatives = (need_columns(schema, "match_net", role, names) for role, names in named.items())
    if len(items) != len(negatives):
        raise ModelError(
            f"match_net: item and negative have {len(items)} and {len(negatives)} slots; "
            "name for each slot of the item that of the negative item, in the same order."
        )
    return users, items, negatives
