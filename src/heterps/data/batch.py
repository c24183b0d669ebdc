"""Batches of samples as flat arrays, with ids already turned into 64-bit keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from heterps.arrays import FloatArray, KeyArray, OffsetArray
from heterps.errors import DataError

NO_USER = 0
"""The key of a user whose id is null."""


@dataclass(frozen=True, eq=False)
class Slots:
    """The sparse part of n samples: a bag of keys for every sample and slot.

    Bag (i, s) is `keys[offsets[i * S + s] : offsets[i * S + s + 1]]` for S slots. Where every bag has exactly one key,
    `offsets` is None and `keys` holds n * S keys, sample by sample.
    """

    names: tuple[str, ...]
    keys: KeyArray
    offsets: OffsetArray | None = None

    def __len__(self) -> int:
        bags = len(self.keys) if self.offsets is None else len(self.offsets) - 1
        return bags // max(len(self.names), 1)

    def select(self, names: Sequence[str]) -> Slots:
        """Return only the named slots, in that order; returns itself if nothing changes."""
        names = tuple(names)
        if names == self.names:
            return self
        missing = [name for name in names if name not in self.names]
        if missing:
            raise DataError(f"no slot named {', '.join(missing)}; there are: {', '.join(self.names)}.")
        columns = [self.names.index(name) for name in names]
        if self.offsets is None:
            picked = self.keys.reshape(-1, len(self.names))[:, columns]
            return Slots(names, np.ascontiguousarray(picked).reshape(-1))
        starts = self.offsets[:-1].reshape(-1, len(self.names))[:, columns].reshape(-1)
        ends = self.offsets[1:].reshape(-1, len(self.names))[:, columns].reshape(-1)
        lengths = ends - starts
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Slots(names, self.keys[np.repeat(starts, lengths) + within], offsets)

    def with_copies(self, copies: Mapping[str, str]) -> Slots:
        """Return these slots and copies of some of them: {"negative": "item"} gives `negative` the ids of `item`."""
        own = [name for name in self.names if name not in copies]
        picked = self.select([*own, *copies.values()])
        return Slots((*own, *copies), picked.keys, picked.offsets)


@dataclass(frozen=True, eq=False)
class Batch:
    """The samples of one optimizer step."""

    dense: FloatArray  # [n, Schema.num_dense]
    slots: Slots
    label: FloatArray  # [n], or [n, number of Schema.target_columns] where there are several; NaN: missing
    users: KeyArray | None = field(default=None, kw_only=True)  # [n] where the schema names a column of users

    def __len__(self) -> int:
        return len(self.label)
