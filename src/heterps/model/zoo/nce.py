"""nce: learns vectors of words by distinguishing contexts that were seen with a word from random contexts.

    word --------------> [0 words]   v [B, dim] ------------------+
                                                                  v
    context, negatives > [1 outputs] u [B, 1 + negatives, dim] > [3 bmm] --> [4 add] --> scores [B, 1 + negatives]
                       > [2 biases]  b [B, 1 + negatives] -------------------^           the context's first: the logit

    score(w, c) = <v_w, u_c> + b_c, which learns how many times likelier c is with w than among the negatives, as a log
    loss = -log P(label of the context)  -  sum over negatives of log(1 - P(seen))      P(seen) = sigmoid(score - log K)

This is noise-contrastive estimation (Gutmann and Hyvärinen, 2010) for skip-gram: a logistic regression that
distinguishes data from K times as much noise.

The label is 1 if the context was seen with the word, and 0 if it was sampled too and is one more negative: so a test
set can measure how well the two are distinguished. Data that has only seen pairs has label 1 everywhere. Negatives are
columns, drawn when the data is written; context and negatives share their rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.model.zoo.towers import need_same_ids, need_slots
from heterps.nn import SparseEmbedding

NEGATIVES = tuple(f"negative{i}" for i in range(1, 6))
COLUMNS = Schema(dense=(), slots=("word", "context", *NEGATIVES), same_ids=dict.fromkeys(NEGATIVES, "context"))


def nce(schema: Schema, embedding_dim: int = 64, seed: int = 0) -> nn.Module:
    """Skip-gram with sampled negatives. The schema's slots are the word, its context, then negatives, any number.

    Dense columns are not read.
    """
    slots = need_slots(schema, "nce", 3, "a word, its context, negatives")
    need_same_ids(schema, "nce", [(negative, slots[1]) for negative in slots[2:]])
    return Nce(slots[0], slots[1:], embedding_dim, seed)


class Nce(nn.Module):
    def __init__(self, word: str, candidates: Sequence[str], dim: int, seed: int) -> None:
        super().__init__()
        self.words = SparseEmbedding([word], dim, seed=seed)
        self.outputs = SparseEmbedding(candidates, dim, seed=seed)
        self.biases = SparseEmbedding(candidates, 1, seed=seed)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:  # noqa: ARG002
        word, outputs, biases = self.words(slots), self.outputs(slots), self.biases(slots)
        scores: Tensor = torch.bmm(outputs, word.transpose(1, 2)) + biases
        return scores.squeeze(2)

    def losses(self, output: Tensor, label: Tensor) -> Tensor:
        """The noise-contrastive loss of each sample [B]: of its context and, summed, of its negatives."""
        seen = output - math.log(output.shape[1] - 1)
        context = functional.binary_cross_entropy_with_logits(seen[:, 0], label, reduction="none")
        return context + functional.softplus(seen[:, 1:]).sum(1)
