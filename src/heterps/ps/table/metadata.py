"""TableMetadata: what a table knows besides its rows, and what a checkpoint therefore keeps of it.

    hand        where eviction goes on                       counters   admitted, refused, evicted by reason
    sketch      counts of keys that wait for a row           sightings  since the counts were last halved

A checkpoint has one of each for every shard. On as many shards as before each gets its own, and training goes on as if
it had not stopped. On another number

    sketch      every shard gets the largest of all old counts in each place: a key was counted by one old shard, so
                that its count is again at least the truth; the sum would be too, but further from it
    sightings   the largest
    hand        0: rows that should go may stay a round longer
    counters    the sums, all at the first shard
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps.ps.table.admission import SketchCounts
from heterps.ps.table.eviction import REASONS, Reason

NUM_COUNTERS = 2 + len(REASONS)


class TableCounters(NamedTuple):
    """Counts of what happened to keys and rows since the table was made; a resumed table goes on counting."""

    admitted: int  # rows created
    refused: int  # gradients dropped because their key was not admitted
    evicted: dict[Reason, int]

    @classmethod
    def total(cls, each: Iterable[TableCounters]) -> TableCounters:
        """Return the sums of several shards, or tables."""
        numbers = np.array([_numbers(counters) for counters in each], np.int64).reshape(-1, NUM_COUNTERS)
        return _counters(numbers.sum(axis=0).tolist())


class TableSizes(NamedTuple):
    """How many rows and bytes are where."""

    memory_rows: int
    disk_rows: int
    memory_bytes: int  # rows, their index, and the index of rows on disk
    disk_bytes: int


class TableMetadata(NamedTuple):
    hand: int
    sightings: int
    counters: TableCounters
    sketch: SketchCounts  # empty where none is kept


def stack(shards: Sequence[TableMetadata]) -> dict[str, NDArray[Any]]:
    """Return arrays with a place for each shard."""
    return {  # in the order of the fields
        "hand": np.array([each.hand for each in shards], np.int64),
        "sightings": np.array([each.sightings for each in shards], np.int64),
        "counters": np.array([_numbers(each.counters) for each in shards], np.int64),
        "sketch": np.stack([each.sketch for each in shards]),
    }


def unstack(arrays: Mapping[str, NDArray[Any]], num_shards: int) -> list[TableMetadata | None]:
    """Return what `stack` gave, for `num_shards` shards; None for each where nothing was kept."""
    if not arrays:
        return [None] * num_shards
    hand, sightings, counters, sketch = (arrays[name] for name in TableMetadata._fields)
    if len(hand) != num_shards:
        hand = np.zeros(num_shards, np.int64)
        sightings = np.full(num_shards, sightings.max())
        sketch = np.broadcast_to(sketch.max(axis=0), (num_shards, sketch.shape[1]))
        totals, counters = counters.sum(axis=0), np.zeros((num_shards, counters.shape[1]), np.int64)
        counters[0] = totals
    return [
        TableMetadata(int(hand[i]), int(sightings[i]), _counters(counters[i].tolist()), sketch[i])
        for i in range(num_shards)
    ]


def _numbers(counters: TableCounters) -> list[int]:
    return [counters.admitted, counters.refused, *(counters.evicted[reason] for reason in REASONS)]


def _counters(numbers: list[int]) -> TableCounters:
    return TableCounters(numbers[0], numbers[1], dict(zip(REASONS, numbers[2:], strict=True)))
