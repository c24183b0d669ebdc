"""The batch that a profile is measured on, and parts of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heterps.config import Schema
from heterps.data.batch import Batch, Slots
from heterps.errors import ModelError
from heterps.model.stages import Values
from heterps.model.trace import Trace

RANDOM_KEYS_PER_SLOT = 200_000
MOST = 5  # of a random label, unless it has fewer classes
ZIPF_EXPONENT = 1.1  # popularity of ids: the r-th most frequent comes about r**-1.1 as often as the first


def random_batch(schema: Schema, batch_size: int, seed: int = 0) -> Batch:
    """Make a random batch of the schema's shape: normal numbers, one id of Zipf popularity per slot, whole labels."""
    rng = np.random.default_rng(seed)
    num_slots = len(schema.slots)
    dense = rng.standard_normal((batch_size, schema.num_dense), np.float32)
    weights = np.arange(1, RANDOM_KEYS_PER_SLOT + 1) ** -ZIPF_EXPONENT
    edges = np.cumsum(weights / weights.sum())
    ranks = np.searchsorted(edges, rng.random((batch_size, num_slots))).astype(np.uint64)
    keys = ranks + np.arange(num_slots, dtype=np.uint64) * np.uint64(2**32)  # slots do not share keys
    highest = [int(min(label.range.highest, MOST)) for label in schema.all_labels.values()]
    columns = [rng.integers(0, most + 1, batch_size).astype(np.float32) for most in highest]
    columns += [np.ones(batch_size, np.float32)] if schema.weight is not None else []
    label = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
    return Batch(dense, Slots(schema.slots, keys.reshape(-1)), label)


def model_inputs(batch: Batch | Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments of `forward`: (dense, slots) of a Batch, or the given inputs."""
    if isinstance(batch, Batch):
        return torch.from_numpy(batch.dense), batch.slots
    return tuple(batch)


def batch_size_of(inputs: Sequence[Any]) -> int:
    """Return the number of samples in the inputs; raises ModelError if they disagree or have none."""
    sizes = {len(value) for value in inputs if _has_samples(value)}
    if len(sizes) != 1 or 0 in sizes:
        raise ModelError(
            "a profile needs a batch of at least one sample, with samples along the first dimension of every input; "
            f"these inputs have {' and '.join(map(str, sorted(sizes))) or 'no'} samples."
        )
    return sizes.pop()


def divide(traced: Trace, inputs: Sequence[Any], batch_size: int, units: Sequence[int]) -> dict[float, Values]:
    """Return the inputs of one of k units, by k: the whole batch first, then parts while there are enough samples."""
    if len(inputs) != len(traced.inputs):
        raise ModelError(
            f"the batch has {len(inputs)} inputs, but the model takes {len(traced.inputs)}: "
            f"{', '.join(traced.inputs)}. Give one for each required argument of its forward, in order; on the command "
            "line with --inputs, or with a method example_inputs(batch_size) of the module."
        )
    sizes = dict.fromkeys(-(-batch_size // number) for number in units)
    return {
        batch_size / size: dict(zip(traced.inputs, [head(value, size) for value in inputs], strict=True))
        for size in sizes
    }


def head(value: Any, num_samples: int) -> Any:
    """Return the first samples of an input; an input without samples is returned as it is."""
    if isinstance(value, Slots):
        bags = num_samples * len(value.names)
        if value.offsets is None:
            return Slots(value.names, value.keys[:bags])
        offsets = value.offsets[: bags + 1]
        return Slots(value.names, value.keys[: offsets[-1]], offsets)
    return value[:num_samples] if _has_samples(value) else value


def _has_samples(value: Any) -> bool:
    if isinstance(value, Slots):
        return bool(value.names)  # data without slots has empty Slots, which do not know the number of samples
    return isinstance(value, Tensor) and value.dim() > 0
