"""Models of random parts: embeddings, sequences, interactions and layers in any order that fits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.nn import Slots, SparseEmbedding, SparseSequence

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU, "leaky": nn.LeakyReLU,
}  # fmt: skip
NORMS: dict[str, type[nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class RandomNet(nn.Module):
    """embeddings  of each: slots, dim, pooling, tables
    sequence    max_length, keep, dim of the slot tags, which attend to each other; None: there is none
    pairs       whether products of the rows of different slots are inputs, too
    layers      words: a width, an activation, a norm, or `dropout`
    """

    def __init__(
        self,
        schema: Schema,
        embeddings: list[dict[str, Any]],
        sequence: dict[str, Any] | None,
        pairs: bool,
        layers: list[str | int],
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(SparseEmbedding(seed=seed, init_scale=0.5, **fields) for fields in embeddings)
        width = schema.num_dense + sum(len(fields["slots"]) * fields["dim"] for fields in embeddings)
        self.pairs = pairs
        if pairs:
            width += sum(len(fields["slots"]) * (len(fields["slots"]) - 1) // 2 for fields in embeddings)
        self.sequence = None if sequence is None else SparseSequence("tags", seed=seed, init_scale=0.5, **sequence)
        if sequence is not None:
            self.attention = nn.MultiheadAttention(sequence["dim"], 1, batch_first=True)
            width += sequence["dim"]
        made: list[nn.Module] = []
        for word in layers:
            if isinstance(word, int):
                made.append(nn.Linear(width, word))
                width = word
            elif word == "dropout":
                made.append(nn.Dropout(0.3))
            else:
                made.append(NORMS[word](width) if word in NORMS else ACTIVATIONS[word]())
        self.layers = nn.Sequential(*made, nn.Linear(width, 1))

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        parts = [dense]
        for embedding in self.embeddings:
            rows = embedding(slots)
            parts.append(rows.flatten(1))
            if self.pairs and rows.shape[1] > 1:
                products = torch.bmm(rows, rows.transpose(1, 2))
                first, second = torch.triu_indices(rows.shape[1], rows.shape[1], offset=1)
                parts.append(products[:, first, second])
        if self.sequence is not None:
            rows, mask = self.sequence(slots)
            attended, _ = self.attention(rows, rows, rows, need_weights=False)
            parts.append((attended * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))
        logits: Tensor = self.layers(torch.cat(parts, dim=1)).squeeze(1)
        return logits
