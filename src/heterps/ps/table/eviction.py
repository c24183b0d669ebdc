"""Which rows go, and a log of those that went.

    reason   a row goes when
    age      no push had its key for more than `max_age` clocks
    uses     its uses have faded below `min_uses`
    bytes    the table has more rows than fit in `max_bytes` with their index, and the row is among the coldest

A hand goes round the rows, some of them with each push, and looks for the first two; so the work of a push is bounded,
and a row may stay a while longer than it must. For the third it passes SAMPLE rows for each that must go, and the
coldest of those go. What goes follows from the rows, their clock and the hand alone (see hand.py).
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps.config import Eviction
from heterps.ps.table import kernels
from heterps.ps.table.changes import ChangeLogs
from heterps.ps.table.hand import Hand, Headers, Tagged
from heterps.ps.table.store import LEAST_INDEX, MAX_LOAD
from heterps.ps.table.usage import Fading, ages_of, faded

Reason = Literal["age", "uses", "bytes"]
REASONS: Final[tuple[Reason, ...]] = ("age", "uses", "bytes")
SAMPLE = 8  # rows looked at for each of the coldest
SPARE = 0.25
LOG_LENGTH = 4096
LOGGED = np.dtype([("key", np.uint64), ("reason", "U5"), ("clock", np.int64), ("uses", np.float32)])


class Evictable(Tagged, Protocol):
    """Rows that can go."""

    @property
    def row_bytes(self) -> int: ...

    def keys_at(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the keys of the rows in these places."""

    def drop(self, keys: NDArray[np.uint64]) -> None:
        """Remove the rows of `keys`, which are all there."""


class Evictor:
    """Lets rows go by a policy. Its hand and the counts of its log are part of a table's checkpoint.

    changes  is told which keys go
    """

    def __init__(self, policy: Eviction, fading: Fading, changes: ChangeLogs | None = None) -> None:
        self.policy = policy
        self.changes = ChangeLogs() if changes is None else changes
        self.hand = Hand()
        self.log = EvictionLog()
        self._fading = fading

    def evict(self, rows: Evictable, step: int, clock: int) -> int:
        """Pass `step` rows; at most as many go because of the byte ceiling. Return how many went."""
        policy, before = self.policy, len(rows)
        if policy.max_age is not None or policy.min_uses is not None:
            gone = expired(self.hand.advance(rows, step), clock, policy, self._fading)
            self._drop(rows, gone, clock)
        if policy.max_bytes is not None:
            excess = min(len(rows) - most_rows(policy.max_bytes, rows.row_bytes), step)
            if excess > 0:
                sample = self.hand.advance(rows, SAMPLE * excess)
                self._drop(rows, {"bytes": coldest(sample, excess, clock, policy.order, self._fading)}, clock)
        return before - len(rows)

    def _drop(self, rows: Evictable, gone: dict[Reason, Headers], clock: int) -> None:
        keys = {reason: rows.keys_at(headers.places) for reason, headers in gone.items()}  # before any row moves
        for reason, headers in gone.items():
            if len(headers.places):
                rows.drop(keys[reason])
                self.log.note(reason, keys[reason], headers.uses, clock)
                self.changes.went(keys[reason])


def most_rows(max_bytes: int, row_bytes: int) -> int:
    """Return how many rows fit in `max_bytes` with their index; at least one.

    The index doubles when it is full, and meanwhile the old one is there too: 12 bytes an entry. Rows go after others
    have come, so the index must have room for a SPARE part more. A table that gets at most as many new rows between two
    pushes never takes more than `max_bytes` after a push.
    """
    most, size = 1, LEAST_INDEX
    while 12 * size < max_bytes:
        indexed = int((int(MAX_LOAD * size) - kernels.BLOCK) / (1 + SPARE))
        most = max(most, min((max_bytes - 12 * size) // row_bytes, indexed))
        size *= 2
    return most


def expired(headers: Headers, clock: int, policy: Eviction, fading: Fading) -> dict[Reason, Headers]:
    """Return the rows that must go at `clock`, by reason; a row with two reasons has the first."""
    old = np.zeros(len(headers.tags), np.bool_)
    if policy.max_age is not None:
        old = ages_of(headers.clocks, clock) > policy.max_age
    rare = np.zeros_like(old)
    if policy.min_uses is not None:
        rare = ~old & (faded(headers.uses, headers.clocks, clock, fading) < policy.min_uses)
    return {"age": headers.select(old), "uses": headers.select(rare)}


def coldest(headers: Headers, num: int, clock: int, order: Literal["lfu", "lru"], fading: Fading) -> Headers:
    """Find the `num` coldest rows: with the fewest uses left at `clock`, or unused for longest; each decides where the
    other is equal, and then the tag, where `headers` are in the order of a hand. One more goes with each that is equal
    to the last in all three.
    """
    if num >= len(headers.tags):
        return headers
    left = faded(headers.uses, headers.clocks, clock, fading).astype(np.float64)
    since = -ages_of(headers.clocks, clock).astype(np.float64)
    first, second = (left, since) if order == "lfu" else (since, left)
    border = np.partition(first, num - 1)[num - 1]
    chosen = first < border
    equal = np.flatnonzero(first == border)
    equal = equal[np.argsort(second[equal], kind="stable")]
    rest = num - int(np.count_nonzero(chosen))
    last = equal[rest - 1]
    chosen[equal[:rest]] = True
    chosen[equal[(second[equal] == second[last]) & (headers.tags[equal] == headers.tags[last])]] = True
    return headers.select(chosen)


class EvictionLog:
    """The last LOG_LENGTH rows that went, and how many in all, by reason."""

    def __init__(self) -> None:
        self.counts: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self._num_noted = 0
        self._ring = np.empty(LOG_LENGTH, LOGGED)

    def note(self, reason: Reason, keys: NDArray[np.uint64], uses: NDArray[np.float32], clock: int) -> None:
        kept = slice(max(0, len(keys) - LOG_LENGTH), len(keys))
        places = (self._num_noted + np.arange(kept.start, kept.stop)) % LOG_LENGTH
        self._ring["key"][places] = keys[kept]
        self._ring["uses"][places] = uses[kept]
        self._ring["reason"][places] = reason
        self._ring["clock"][places] = clock
        self._num_noted += len(keys)
        self.counts[reason] += len(keys)

    def entries(self) -> NDArray[np.void]:
        """Return the logged rows, the earliest first: key, reason, clock (of the eviction) and uses (as last noted)."""
        order = np.arange(max(0, self._num_noted - LOG_LENGTH), self._num_noted) % LOG_LENGTH
        return self._ring[order]
