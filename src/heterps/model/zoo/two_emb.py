"""two_emb: a big embedding under a tower, a tiny one under a single layer, and a two-way decision over both.

It is made for a scheduler to split: the paper's big table (1,000,001 rows of 10 for 26 slots) needs cheap memory, its
tiny one (100 rows of 10 for 5 slots) fits anywhere.

    slots --> [0 big]  --> [1 linear1] --> [2 relu1] --> [3 linear2] --> [4 relu2] --> [5 deep.out] --+
              26 x 10          400                           400                           50         |
    slots --> [6 tiny] --> [7 wide] ------------------------------------------------------------------+--> [8 cat]
               5 x 10         128                                                                     |       |
    dense --------------------------------------------------------------------------------------------+       v
                                                                                                  [9 logit] --> logit

ReLU is between fully connected layers, not after the last. The two-way softmax is the sigmoid of one logit. Tables
have no declared size: they hold the ids that were seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.zoo.towers import activated, need_columns, need_slots
from heterps.nn import SparseEmbedding

NUM_TINY = 5
COLUMNS = Schema(dense=(), slots=tuple(f"C{i}" for i in range(1, 27)) + tuple(f"T{i}" for i in range(1, 1 + NUM_TINY)))


def two_emb(
    schema: Schema,
    embedding_dim: int = 10,
    tiny: Sequence[str] | None = None,
    hidden: Sequence[int] = (400, 400),
    outputs: tuple[int, int] = (50, 128),
    seed: int = 0,
) -> nn.Module:
    """A big embedding under a tower and a tiny one under a single layer, joined for one decision.

    tiny     slots with few ids; None: the schema's last five. All others are in the big embedding
    hidden   widths of the big embedding's tower
    outputs  widths of the layers above the big and the tiny embedding
    """
    slots = need_slots(schema, "two_emb", NUM_TINY + 1 if tiny is None else 2, "one for the big embedding, five tiny")
    few = slots[-NUM_TINY:] if tiny is None else need_columns(schema, "two_emb", "tiny", tiny)
    many = [slot for slot in slots if slot not in few]
    if not many:
        raise ModelError("two_emb: tiny names every slot of the schema; leave at least one for the big embedding.")
    big = SparseEmbedding(many, embedding_dim, seed=seed)
    return TwoEmb(big, SparseEmbedding(few, embedding_dim, seed=seed), schema.num_dense, hidden, outputs)


class TwoEmb(nn.Module):
    def __init__(
        self,
        big: SparseEmbedding,
        tiny: SparseEmbedding,
        num_dense: int,
        hidden: Sequence[int],
        outputs: tuple[int, int],
    ) -> None:
        super().__init__()
        num_inputs = len(big.slots) * big.dim
        self.big = big
        self.deep = activated(num_inputs, hidden)
        self.deep.add_module("out", nn.Linear(hidden[-1] if hidden else num_inputs, outputs[0]))
        self.tiny = tiny
        self.wide = nn.Linear(len(tiny.slots) * tiny.dim, outputs[1])
        self.logit = nn.Linear(num_dense + sum(outputs), 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        deep = self.deep(self.big(slots).flatten(1))
        wide = self.wide(self.tiny(slots).flatten(1))
        logits: Tensor = self.logit(torch.cat([dense, deep, wide], dim=1))
        return logits.squeeze(1)
