"""Lookups: the keys of a batch for tables, worked out ahead of use, cut into pieces, and put together again.

Slots --prepared--> PreparedSlots --slice_slots--> pieces, which share the unique keys and the rows of the whole
                        |                             |
                     TableKeys: lookup,            RowUse: a forward pass used them, backward reached them
                     rows asked for ahead             |
                                                   joined_gradients --> RowGradients: one push to each table
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heterps.arrays import FloatArray, KeyArray, OffsetArray
from heterps.data.batch import Slots
from heterps.ps.keys.dedup import Lookup, make_lookup


@dataclass(frozen=True, eq=False)
class TableKeys:
    """The keys of a batch for one table, or of a piece of it that shares the lookup and the rows of the `whole` batch.

    slots  whose bags these are, in each sample
    ahead  by table, how to get rows that were asked for ahead of use
    grads  by table, memory for the gradients of the whole batch, which its pieces fill
    """

    keys: KeyArray
    offsets: OffsetArray | None
    lookup: Lookup
    slots: tuple[str, ...]
    ahead: dict[str, Callable[[], Future[FloatArray]]] = field(default_factory=dict)
    grads: dict[str, FloatArray] = field(default_factory=dict)
    whole: TableKeys | None = None
    start: int = 0  # of a piece: where its keys begin in those of the whole

    def slot_of(self, at: int) -> str:
        """The name of the slot that key number `at` is in."""
        bag = at if self.offsets is None else int(np.searchsorted(self.offsets, at, side="right")) - 1
        return self.slots[bag % len(self.slots)]


class Window(NamedTuple):
    """The part of each bag that is looked up: a number of its newest keys, which are last, or of its oldest."""

    max_length: int
    newest: bool


Owner = tuple[tuple[str, ...], int, Window | None]
"""What decides a lookup: the names of slots, the number of shards, and the part of each bag; None: all of it."""


@dataclass(frozen=True, eq=False)
class PreparedSlots(Slots):
    """Slots with their lookups, and with rows that were asked for ahead."""

    lookups: dict[Owner, TableKeys] = field(default_factory=dict, repr=False)


def prepared(slots: Slots) -> PreparedSlots:
    """The same slots, which can keep lookups."""
    return slots if isinstance(slots, PreparedSlots) else PreparedSlots(slots.names, slots.keys, slots.offsets)


class RowUse(NamedTuple):
    """One use of a table in a forward pass; `backward` has stored its gradient in `values.grad`."""

    table: str
    part: TableKeys
    values: Tensor

    @property
    def gradient(self) -> FloatArray:
        assert self.values.grad is not None
        return self.values.grad.detach().to("cpu", torch.float32).contiguous().numpy()


class RowGradients(NamedTuple):
    """The gradients [n, dim] of all keys of a lookup, for one push to a table."""

    table: str
    lookup: Lookup
    grads: FloatArray


def joined_gradients(uses: Iterable[RowUse], num_shards: int) -> list[RowGradients]:
    """The gradients of some uses, one for each table. Uses of all pieces of a batch, in order, are one of the batch."""
    by_table: dict[str, list[RowUse]] = {}
    for use in uses:
        by_table.setdefault(use.table, []).append(use)
    return [_joined(table, found, num_shards) for table, found in by_table.items()]


def _joined(table: str, uses: list[RowUse], num_shards: int) -> RowGradients:
    grads = [use.gradient for use in uses]
    parts = [use.part for use in uses]
    first = parts[0]
    if len(parts) == 1 and first.whole is None:
        return RowGradients(table, first.lookup, grads[0])
    if first.whole is not None and _are_all_of(first.whole, parts):
        filled = first.whole.grads.pop(table, None)
        return RowGradients(table, first.whole.lookup, np.concatenate(grads) if filled is None else filled)
    together = np.concatenate(grads)
    return RowGradients(table, make_lookup(np.concatenate([part.keys for part in parts]), num_shards), together)


def _are_all_of(whole: TableKeys, parts: Iterable[TableKeys]) -> bool:
    """Whether these are the pieces of `whole`, each once and in their order."""
    at = 0
    for part in parts:
        if part.whole is not whole or part.start != at:
            return False
        at += len(part.keys)
    return at == len(whole.keys)


def slice_slots(slots: Slots, first: int, last: int) -> PreparedSlots:
    """Return samples first..last-1 of `slots`. Lookups are sliced too, but keep the whole's unique keys and rows."""
    piece = PreparedSlots(slots.names, *_bags_between(slots.keys, slots.offsets, len(slots.names), first, last)[:2])
    for owner, part in slots.lookups.items() if isinstance(slots, PreparedSlots) else ():
        keys, offsets, where = _bags_between(part.keys, part.offsets, len(owner[0]), first, last)
        lookup = part.lookup._replace(inverse=part.lookup.inverse[where])
        whole, start = part.whole or part, part.start + where.start
        piece.lookups[owner] = TableKeys(keys, offsets, lookup, part.slots, part.ahead, whole=whole, start=start)
    return piece


def cut_bags(slots: Slots, window: Window) -> Slots:
    """The slots with no more of each bag than a window has."""
    if slots.offsets is None or np.diff(slots.offsets).max(initial=0) <= window.max_length:
        return slots
    lengths = np.minimum(np.diff(slots.offsets), window.max_length)
    starts = slots.offsets[1:] - lengths if window.newest else slots.offsets[:-1]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    keys = slots.keys[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)]
    return Slots(slots.names, keys, offsets)


def _bags_between(
    keys: KeyArray, offsets: OffsetArray | None, num_slots: int, first: int, last: int
) -> tuple[KeyArray, OffsetArray | None, slice]:
    """Return keys and offsets of samples first..last-1, and the slice of `keys` that they are."""
    if offsets is None:
        where = slice(first * num_slots, last * num_slots)
        return keys[where], None, where
    bags = offsets[first * num_slots : last * num_slots + 1]
    where = slice(int(bags[0]), int(bags[-1]))
    return keys[where], bags - bags[0], where
