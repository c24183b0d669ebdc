"""The common part of models that look at a history: the item, the list of items before it, everything else.

item ------> items    [B, dim] ------+    one table: an item has one row, in either place
history ---> history  [B, L, dim] ---+--> what a model makes of the two --+
others ----> context  [B, S * dim] ---------------------------------------+--> tower --> logit
dense --------------------------------------------------------------------+
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Slots
from heterps.errors import ModelError
from heterps.model.zoo.towers import need_columns, need_same_ids, need_slots, tower
from heterps.nn import SparseEmbedding, SparseSequence

COLUMNS = Schema(dense=(), slots=("user", "item", "history"), same_ids={"history": "item"})
NUM_EXAMPLE_ITEMS = 10_000


class HistoryModel(nn.Module):
    """Embeddings of an item, of the history before it and of all other slots, and a tower with one logit.

    num_values  number of values a sample that a subclass adds to those of item, context and dense columns
    """

    def __init__(
        self,
        schema: Schema,
        model: str,
        item: str | None,
        history: str | None,
        dim: int,
        max_length: int,
        hidden: Sequence[int],
        num_values: int,
        seed: int,
    ) -> None:
        super().__init__()
        item, history = _roles(schema, model, item, history)
        if max_length < 1:
            raise ModelError(f"{model}: max_length must be at least 1, got {max_length}.")
        others = [slot for slot in schema.slots if slot not in (item, history)]
        scale = dim**-0.5  # rows of about length 1: with shorter ones their products hardly count at first
        self.items = SparseEmbedding([item], dim, init_scale=scale, seed=seed)
        self.history = SparseSequence(history, dim, max_length=max_length, table="items", init_scale=scale, seed=seed)
        self.context = SparseEmbedding(others, dim, seed=seed) if others else None
        self.deep = tower(schema.num_dense + dim * (1 + len(others)) + num_values, hidden)
        self._slots, self._num_dense = schema.slots, schema.num_dense

    def logits(self, dense: Tensor, slots: Slots, target: Tensor, interest: Tensor) -> Tensor:
        """The logits [B] of a target item [B, dim], what is known of its history [B, num_values], and all the rest."""
        parts = [dense, target, interest]
        if self.context is not None:
            parts.append(self.context(slots).flatten(1))
        logits: Tensor = self.deep(torch.cat(parts, dim=1))
        return logits.squeeze(1)

    def example_inputs(self, batch_size: int) -> tuple[Tensor, Slots]:
        """A random batch with full histories, for profiles without data."""
        lengths = [self.history.max_length if slot == self.history.slots[0] else 1 for slot in self._slots]
        offsets = np.concatenate([[0], np.cumsum(np.tile(lengths, batch_size))])
        keys = np.random.default_rng(0).integers(0, NUM_EXAMPLE_ITEMS, offsets[-1]).astype(np.uint64)
        return torch.randn(batch_size, self._num_dense), Slots(self._slots, keys, offsets)


def _roles(schema: Schema, model: str, item: str | None, history: str | None) -> tuple[str, str]:
    if (item is None) != (history is None):
        raise ModelError(f"{model}: name the slots of item and history together, or neither of them.")
    slots = need_slots(schema, model, 2, "an item and the history of items before it")
    if item is None or history is None:
        item, history = slots[-2:]
    need_columns(schema, model, "item", [item])
    need_columns(schema, model, "history", [history])
    need_same_ids(schema, model, [(history, item)])
    return item, history
