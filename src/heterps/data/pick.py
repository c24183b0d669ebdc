"""Gather rows of decoded blocks into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import KeyArray, OffsetArray
from heterps.config import Schema
from heterps.data.batch import Batch, Slots
from heterps.data.decode import Block
from heterps.data.kernels import pick_bags

BlockRows = tuple[Block, NDArray[np.int64]]
"""A decoded block, and indices of its rows."""


@dataclass(frozen=True, eq=False)
class BatchRows:
    """The rows of a batch, in the blocks that have them, before they are gathered."""

    schema: Schema
    pieces: list[BlockRows]

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self.pieces)

    def pick(self, bounds: Sequence[tuple[int, int]] | None = None) -> Batch:
        """Gather the samples within these bounds, one after the other; None: all."""
        if bounds is None:
            return pick(self.schema, self.pieces)
        starts = np.cumsum([0, *(len(rows) for _, rows in self.pieces)]).tolist()
        wanted = [
            (block, rows[max(first - start, 0) : max(last - start, 0)])
            for first, last in bounds
            for start, (block, rows) in zip(starts, self.pieces, strict=False)
        ]
        block, rows = self.pieces[0]
        return pick(self.schema, [piece for piece in wanted if len(piece[1])] or [(block, rows[:0])])


def pick(schema: Schema, pieces: list[BlockRows]) -> Batch:
    """Make a batch of the given rows of each block."""
    size = sum(len(rows) for _, rows in pieces)
    names = schema.slots
    dense = np.empty((size, schema.num_dense), np.float32)
    label = np.empty((size, *pieces[0][0].label.shape[1:]), np.float32)
    keys = np.empty((size, len(names)), np.uint64)
    ragged: list[tuple[KeyArray, OffsetArray]] = []
    at = 0
    for block, rows in pieces:
        to = slice(at, at + len(rows))
        # mode="clip" lets NumPy write straight into `out`; every index is in range.
        block.dense.take(rows, axis=0, out=dense[to], mode="clip")
        block.label.take(rows, axis=0, out=label[to], mode="clip")
        if block.offsets is None:
            block.keys.reshape(len(block.label), -1).take(rows, axis=0, out=keys[to], mode="clip")
        else:
            lengths = np.empty(len(rows) * len(names), np.int64)
            ragged.append((pick_bags(block.keys, block.offsets, len(names), rows, lengths), lengths))
        at = to.stop
    if not ragged:
        return Batch(dense, Slots(names, keys.reshape(-1)), label, users=_users(pieces))
    offsets = np.concatenate([np.zeros(1, np.int64), *(lengths for _, lengths in ragged)])
    np.cumsum(offsets, out=offsets)
    bags = Slots(names, np.concatenate([keys for keys, _ in ragged]), offsets)
    return Batch(dense, bags, label, users=_users(pieces))


def _users(pieces: list[BlockRows]) -> KeyArray | None:
    users = [block.users[rows] for block, rows in pieces if block.users is not None]
    return np.concatenate(users) if users else None


def joined(blocks: list[Block]) -> Block:
    """Concatenate blocks into one."""
    first_rows = np.cumsum([0, *(len(block.label) for block in blocks)])
    offsets = None
    if blocks[0].offsets is not None:
        first_keys = np.cumsum([0, *(len(block.keys) for block in blocks)])
        shifted = [b.offsets[1:] + first for b, first in zip(blocks, first_keys, strict=False) if b.offsets is not None]
        offsets = np.concatenate([np.zeros(1, np.int64), *shifted])
    return Block(
        np.concatenate([block.dense for block in blocks]),
        np.concatenate([block.keys for block in blocks]),
        offsets,
        np.concatenate([block.label for block in blocks]),
        np.concatenate([block.rows + first for block, first in zip(blocks, first_rows, strict=False)]),
        _users([(block, np.arange(len(block.label))) for block in blocks]),
    )
