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

SIDE = 8
CLICKS = Schema(dense=("a", "b", "c"), slots=("s", "t", "u", "v"))
IMAGES = Schema(num_classes=4, dense=("image",), widths={"image": SIDE * SIDE}, slots=())
TWO_LABELS = Schema(
    labels={"click": {"loss": "binary"}, "rating": {"loss": "mse", "weight": 0.5, "missing": "mask"}},
    dense=("a", "b"),
    slots=("s", "t", "u"),
)
HISTORY = Schema(dense=("a",), slots=("user", "item", "history"), same_ids={"history": "item"})
OF_IMAGES = ("alexnet", "resnet")
CASES: dict[str, tuple[Schema, dict[str, Any]]] = {
    "ctr_dnn": (CLICKS, {"embedding_dim": 4, "hidden": (16, 8)}),
    "deepfm": (CLICKS, {"embedding_dim": 4, "hidden": (16, 8)}),
    "match_net": (COLUMNS["match_net"], {"embedding_dim": 4, "hidden": (16, 8)}),
    "two_emb": (CLICKS, {"embedding_dim": 4, "tiny": ("t", "v"), "hidden": (16,), "outputs": (6, 8)}),
    "nce": (COLUMNS["nce"], {"embedding_dim": 8}),
    "mmoe": (TWO_LABELS, {"embedding_dim": 4, "num_experts": 2, "expert": (16,), "tower": (8,)}),
    "din": (HISTORY, {"embedding_dim": 4, "max_length": 5, "attention": (6,), "hidden": (8,)}),
    "bst": (HISTORY, {"embedding_dim": 4, "max_length": 5, "hidden": (8,)}),
    "alexnet": (IMAGES, {"width": 4}),
    "resnet": (IMAGES, {"depth": 8, "width": 4, "norm": "group"}),
}


def small_model(name: str) -> nn.Module:
    schema, args = CASES[name]
    return ZOO[name](schema, **args)


def small_inputs(name: str, num_samples: int, seed: int = 0, ragged: bool = False) -> tuple[Tensor, Slots]:
    batch = small_batch(name, num_samples, seed)
    if not ragged or not batch.slots.names:
        return torch.from_numpy(batch.dense), batch.slots
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, len(batch.slots.keys))
    keys = rng.integers(0, 9, lengths.sum()).astype(np.uint64)
    return torch.from_numpy(batch.dense), Slots(batch.slots.names, keys, np.concatenate([[0], np.cumsum(lengths)]))


def small_batch(name: str, num_samples: int, seed: int = 0, num_ids: int = 30) -> Batch:
    """Samples with something to learn, which goes by whether ids are odd or even, or by where an image is bright."""
    schema, _ = CASES[name]
    rng = np.random.default_rng(seed)
    if name in OF_IMAGES:
        return _bright_quarters(rng, num_samples)
    ids = rng.integers(0, num_ids, (num_samples, len(schema.slots)))
    label = ids[:, 0] % 2 == 0
    if name in ("din", "bst"):  # by the item
        label = ids[:, 1] % 2 == 0
    if name == "nce":  # even words have even contexts
        label = (ids[:, 0] + ids[:, 1]) % 2 == 0
    if name == "match_net":  # of an even and an odd item, even users take the even one
        label = (ids[:, 0] + ids[:, 2]) % 2 == 0
        ids[:, 4] = ids[:, 4] // 2 * 2 + (ids[:, 2] + 1) % 2
    dense = rng.standard_normal((num_samples, len(schema.dense)), np.float32)
    label = label.astype(np.float32)
    if name == "mmoe":  # a rating, by the second id, of what is clicked
        label = np.stack([label, np.where(label, ids[:, 1] % 2, np.nan)], axis=1).astype(np.float32)
    return Batch(dense, slots_from_ids(ids, schema.slots, schema.same_ids), label)


def _bright_quarters(rng: np.random.Generator, num_samples: int) -> Batch:
    """Noise that is brighter in one quarter of the image, whose number is the label."""
    label = rng.integers(0, 4, num_samples)
    images = rng.standard_normal((num_samples, 2, SIDE // 2, 2, SIDE // 2), np.float32)
    images[np.arange(num_samples), label // 2, :, label % 2] += 2
    return Batch(images.reshape(num_samples, -1), Slots((), np.empty(0, np.uint64)), label.astype(np.float32))
