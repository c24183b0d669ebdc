"""Hand: goes round the rows of a table in the order of their tags, a few rows at a time.

    tags   0 ............ at ............... 2**32       a tag is the upper half of a key's hash
                           |==== passed ===|             the next `num` rows, and those with the tag of the last

Which rows are passed follows from the keys in the table and from where the hand is, and from nothing else: not from the
order of rows in memory, the size of the index, or which rows are on disk. So a table that was saved and loaded goes on
as if it had not been, and one with tiers does as one without.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

NUM_TAGS = 2**32


class Headers(NamedTuple):
    """Headers of some rows, and where these are; a place is good until a row comes or goes."""

    tags: NDArray[np.uint32]
    uses: NDArray[np.float32]
    clocks: NDArray[np.uint32]
    places: NDArray[np.int64]

    def select(self, which: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Headers:
        """Return the headers at these positions, or where this mask is true."""
        return Headers(self.tags[which], self.uses[which], self.clocks[which], self.places[which])

    @classmethod
    def join(cls, parts: list[Self]) -> Headers:
        if len(parts) == 1:
            return parts[0]
        return Headers(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class Tagged(Protocol):
    """Rows that can be found by their tags."""

    def __len__(self) -> int: ...

    def in_tags(self, low: int, high: int) -> Headers:
        """Return all rows whose tag is at least `low` and less than `high`, in any order."""


class Hand:
    """`at` is the tag where it goes on: the one number to save."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def advance(self, rows: Tagged, num: int) -> Headers:
        """Pass the next `num` rows (or all, where there are fewer) in the order of tags, and return them.

        Rows that share the tag of the last one are among them too.
        """
        num = min(num, len(rows))
        if num < 1:
            return rows.in_tags(0, 0)
        parts: list[Headers] = []
        width = num_found = 0
        while num_found < num:  # mostly once: a tenth more tags than the rows would have if they lay evenly
            start, width = width, min(width + NUM_TAGS * (num - num_found) * 11 // (10 * len(rows)) + 1, NUM_TAGS)
            for low, high in _unwrapped(self.at + start, self.at + width):
                parts.append(rows.in_tags(low, high))
                num_found += len(parts[-1].tags)
        passed = Headers.join(parts)
        ways = passed.tags - np.uint32(self.at)  # round the end
        order = np.argsort(ways)
        last = int(ways[order[num - 1]])
        self.at = (self.at + last + 1) % NUM_TAGS
        return passed.select(order[: np.searchsorted(ways, last, side="right", sorter=order)])


def _unwrapped(start: int, stop: int) -> list[tuple[int, int]]:
    """Return the tags start..stop-1, taken modulo NUM_TAGS, as ranges that do not go round the end."""
    if start >= NUM_TAGS:
        return [(start - NUM_TAGS, stop - NUM_TAGS)]
    if stop <= NUM_TAGS:
        return [(start, stop)]
    return [(start, NUM_TAGS), (0, stop - NUM_TAGS)]
