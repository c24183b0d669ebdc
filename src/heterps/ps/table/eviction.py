"""Which rows go, and a log of those that went.

    reason   a row goes when
    age      no push had its key for more than `max_age` clocks
    uses     its uses have faded below `min_uses`
    bytes    the table is over `max_bytes` and the row is among the coldest

A hand goes round the rows, some of them with each push, and looks for the first two; so the work of a push is bounded,
and a row may stay a while longer than it must.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps.config import Eviction
from heterps.ps.table.usage import Fading, ages_of, faded

Reason = Literal["age", "uses", "bytes"]
REASONS: Final[tuple[Reason, ...]] = ("age", "uses", "bytes")
LOG_LENGTH = 4096
LOGGED = np.dtype([("key", np.uint64), ("reason", "U5"), ("clock", np.int64), ("uses", np.float32)])
_STORED = np.dtype([("key", np.uint64), ("reason", np.uint8), ("clock", np.int64), ("uses", np.float32)])


class Headers(NamedTuple):
    """Keys and headers of some rows."""

    keys: NDArray[np.uint64]
    uses: NDArray[np.float32]
    clocks: NDArray[np.uint32]


def expired(headers: Headers, clock: int, policy: Eviction, fading: Fading) -> dict[Reason, NDArray[np.uint64]]:
    """Keys of the rows that must go at `clock`, by reason; a row with two reasons has the first."""
    old = np.zeros(len(headers.keys), np.bool_)
    if policy.max_age is not None:
        old = ages_of(headers.clocks, clock) > policy.max_age
    rare = np.zeros_like(old)
    if policy.min_uses is not None:
        rare = ~old & (faded(headers.uses, headers.clocks, clock, fading) < policy.min_uses)
    return {"age": headers.keys[old], "uses": headers.keys[rare]}


def coldest(headers: Headers, num: int, clock: int, order: Literal["lfu", "lru"], fading: Fading) -> NDArray[np.uint64]:
    """Keys of the `num` coldest rows: with the fewest uses left at `clock`, or unused for longest."""
    if num >= len(headers.keys):
        return headers.keys
    if order == "lru":
        warmth: NDArray[np.floating] = -ages_of(headers.clocks, clock).astype(np.float64)
    else:
        warmth = faded(headers.uses, headers.clocks, clock, fading)
    return headers.keys[np.argpartition(warmth, num)[:num]]


class EvictionLog:
    """The last LOG_LENGTH rows that went, and how many in all, by reason."""

    def __init__(self) -> None:
        self.counts: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self._ring = np.empty(LOG_LENGTH, _STORED)

    def note(self, reason: Reason, keys: NDArray[np.uint64], uses: NDArray[np.float32], clock: int) -> None:
        total = sum(self.counts.values())
        self.counts[reason] += len(keys)
        kept = slice(max(0, len(keys) - LOG_LENGTH), len(keys))
        places = (total + np.arange(kept.start, kept.stop)) % LOG_LENGTH
        self._ring["key"][places] = keys[kept]
        self._ring["uses"][places] = uses[kept]
        self._ring["reason"][places] = REASONS.index(reason)
        self._ring["clock"][places] = clock

    def entries(self) -> NDArray[np.void]:
        """The logged rows, the earliest first: fields key, reason, clock (of the eviction) and uses (as last noted)."""
        total = sum(self.counts.values())
        order = np.arange(max(0, total - LOG_LENGTH), total) % LOG_LENGTH
        out = np.empty(len(order), LOGGED)
        for field in ("key", "clock", "uses"):
            out[field] = self._ring[field][order]
        out["reason"] = np.array(REASONS)[self._ring["reason"][order]]
        return out
