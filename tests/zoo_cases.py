"""Every model of the zoo in a size that a test can afford, and batches for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heterps.config import Schema
from heterps.data.batch import Batch, Slots
from heterps.data.keys import slots_from_ids
from heterps.model.zoo import COLUMNS, ZOO

CLICKS = Schema(dense=("a", "b", "c"), slots=("s", "t", "u", "v"))
CASES: dict[str, tuple[Schema, dict[str, Any]]] = {
    "ctr_dnn": (CLICKS, {"embedding_dim": 4, "hidden": (16, 8)}),
    "deepfm": (CLICKS, {"embedding_dim": 4, "hidden": (16, 8)}),
    "match_net": (COLUMNS["match_net"], {"embedding_dim": 4, "hidden": (16, 8)}),
    "two_emb": (CLICKS, {"embedding_dim": 4, "tiny": ("t", "v"), "hidden": (16,), "outputs": (6, 8)}),
    "nce": (COLUMNS["nce"], {"embedding_dim": 8}),
}


def small_model(name: str) -> nn.Module:
    schema, args = CASES[name]
    return ZOO[name](schema, **args)


def small_inputs(name: str, num_samples: int, seed: int = 0, ragged: bool = False) -> tuple[Tensor, Slots]:
    batch = small_batch(name, num_samples, seed)
    if not ragged:
        return torch.from_numpy(batch.dense), batch.slots
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, len(batch.slots.keys))
    keys = rng.integers(0, 9, lengths.sum()).astype(np.uint64)
    return torch.from_numpy(batch.dense), Slots(batch.slots.names, keys, np.concatenate([[0], np.cumsum(lengths)]))


def small_batch(name: str, num_samples: int, seed: int = 0, num_ids: int = 30) -> Batch:
    """Samples with something to learn, which goes by whether ids are odd or even."""
    schema, _ = CASES[name]
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, num_ids, (num_samples, len(schema.slots)))
    label = ids[:, 0] % 2 == 0
    if name == "nce":  # even words have even contexts
        label = (ids[:, 0] + ids[:, 1]) % 2 == 0
    if name == "match_net":  # of an even and an odd item, even users take the even one
        label = (ids[:, 0] + ids[:, 2]) % 2 == 0
        ids[:, 4] = ids[:, 4] // 2 * 2 + (ids[:, 2] + 1) % 2
    dense = rng.standard_normal((num_samples, len(schema.dense)), np.float32)
    return Batch(dense, slots_from_ids(ids, schema.slots, schema.same_ids), label.astype(np.float32))
