"""bst: Behaviour Sequence Transformer (Chen et al., 2019): a small transformer over a history and the item after it.

    history ---> [0 history] h [B, L, dim], mask --+
    item ------> [1 items]   t [B, dim] -----------+--> [2 sequence] h1 ... hL, t, each with its position
                                                   |      |
                                                   |    [3 blocks.0.self_attn] ... [13 blocks.0.norm2]
                                                   |      |    attention among all places of the mask, feed-forward
    others ----> [14 context] -+                   |    the place of t [B, dim]
    dense ---------------------+--> [15 cat] <-----+------+
                                       +--> [16 deep.linear1] ... [20 deep.logit] --> logit

Histories end at the same place, so a position is how long ago something was. The paper joins the outputs of all places;
here that of the item is used, which has looked at all others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.kinds import whole
from heterps.model.zoo.history import HistoryModel


def bst(
    schema: Schema,
    embedding_dim: int = 16,
    item: str | None = None,
    history: str | None = None,
    max_length: int = 50,
    blocks: int = 1,
    heads: int = 2,
    dropout: float = 0.0,
    hidden: Sequence[int] = (200, 80),
    seed: int = 0,
) -> nn.Module:
    """Predict whether an item is taken after a history of items, by a transformer over the history and the item.

    item, history  their slots, which hold the same ids; None: the schema's last two. All other slots are context
    max_length     number of items of a history that are looked at: its newest, which are last
    blocks, heads  number of layers of the transformer, and of heads of its attention
    hidden         widths of the tower
    """
    if embedding_dim % heads:
        raise ModelError(f"bst: embedding_dim ({embedding_dim}) must be a multiple of heads ({heads}).")
    return Bst(schema, embedding_dim, item, history, max_length, blocks, heads, dropout, hidden, seed)


class Bst(HistoryModel):
    def __init__(
        self,
        schema: Schema,
        dim: int,
        item: str | None,
        history: str | None,
        max_length: int,
        blocks: int,
        heads: int,
        dropout: float,
        hidden: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__(schema, "bst", item, history, dim, max_length, hidden, dim, seed)
        self.sequence = WithPositions(max_length, dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout, batch_first=True) for _ in range(blocks)
        )

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        rows, mask = self.history(slots)
        target = self.items(slots).squeeze(1)
        sequence, nothing = self.sequence(rows, mask, target)
        for block in self.blocks:
            sequence = block(sequence, src_key_padding_mask=nothing)
        return self.logits(dense, slots, target, sequence[:, -1])


class WithPositions(nn.Module):
    """Puts the target behind its history and adds a learned vector to each place; also says where nothing is."""

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.02 * torch.randn(max_length + 1, dim))

    def forward(self, rows: Tensor, mask: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        sequence = torch.cat([rows, target.unsqueeze(1)], dim=1) + self.positions
        return sequence, functional.pad(~mask, (0, 1), value=False)


whole(WithPositions, kind="concat")
