"""The index of a sparse table: hashes to row numbers, growing a few entries at a time.

    keys --mix64--> hash --top bits--> entry --row number--> row

An entry is (tag << 32) | (row + 1), where the tag is the upper half of the hash; 0 is an empty entry. Entries lie by
open addressing with linear probing. An index of `size` entries, a power of two, is at [size, 2 size) of one array, so
that each has its place before it is needed:

    entries   [ ... | old index of half the size | index of `size`, empty at first | ... ]
                     half                         size                              2 size

An entry's home is given by the top bits of its tag alone, so a larger index is filled from a smaller one without a look
at the rows: [1] growth begins at an empty entry of the old index, `start`; [2] with each batch some entries more move,
always up to an empty one, so that no run of neighbours is ever split; [3] a key whose home in the old index is among
the first `moved` from `start` is in the new index, or goes there; every other is in the old one. A key is looked for in
one place at any time, and no batch moves more than a few entries for each of its keys.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.arrays import KeyArray

Numbers = NDArray[np.int64]
IndexLayout = tuple[int, int, int, int]

# Divisions follow NumPy, without a check for zero: that check would keep the optimizers' loops from being vectorised.
kernel = njit(nogil=True, cache=True, error_model="numpy")
inline = njit(nogil=True, cache=True, inline="always")

ROWS, SIZE, SHIFT, START, MOVED = range(5)
"""What the counts of a table are: rows, and of its index the size, how far a tag is shifted to its home, `start`,
`moved`."""
ALL_MOVED = 1 << 62
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def make_counts(size: int) -> Numbers:
    """Return the counts of a table without rows, whose index has `size` entries and is not growing."""
    return np.array([0, size, 33 - size.bit_length(), 0, ALL_MOVED], np.int64)


@inline
def layout_of(counts: Numbers) -> IndexLayout:
    """(size, shift, start, moved), read once for many keys: stores into other arrays might change `counts`, for all
    that the compiler knows."""
    return counts[SIZE], counts[SHIFT], counts[START], counts[MOVED]


@inline
def home_of(layout: IndexLayout, tag: np.uint64) -> int:
    """Return where the search for a tag begins: in the old index, or in the new one [3]."""
    size, shift, start, moved = layout
    home = np.int64(tag >> np.uint64(shift))
    old = home >> 1
    if (old - start) & ((size >> 1) - 1) < moved:
        return size + home
    return (size >> 1) + old


@inline
def base_of(layout: IndexLayout, position: int) -> int:
    """Return the first entry, and the size, of the index that `position` lies in."""
    return layout[0] if position >= layout[0] else layout[0] >> 1


@inline
def entry_for(tag: np.uint64, row: int) -> np.uint64:
    return (tag << _32) | np.uint64(row + 1)


@inline
def tag_in(entry: np.uint64) -> np.uint64:
    return entry >> _32


@inline
def row_in(entry: np.uint64) -> int:
    return np.int64(entry & _LOW_32) - 1


@inline
def point_to(entries: KeyArray, counts: Numbers, tag: np.uint64, row: int, new_row: int) -> None:
    """Make the entry of this tag and `row`, which must be there, one of `new_row`."""
    layout = layout_of(counts)
    position, wanted = home_of(layout, tag), entry_for(tag, row)
    base = base_of(layout, position)
    while entries[position] != wanted:
        position = base + ((position + 1) & (base - 1))
    entries[position] = entry_for(tag, new_row)


@inline
def remove(entries: KeyArray, counts: Numbers, gap: int) -> None:
    """Empty the entry at `gap`, and move later ones of its run up, so that each is still found from its home."""
    base = base_of(layout_of(counts), gap)
    mask, shift = base - 1, np.uint64(counts[SHIFT])
    if base != counts[SIZE]:
        shift += np.uint64(1)
    position = gap
    while True:
        position = base + ((position + 1) & mask)
        entry = entries[position]
        if entry == np.uint64(0):
            break
        home = np.int64(tag_in(entry) >> shift)
        if (position - home) & mask >= (position - gap) & mask:  # its home is not behind the gap
            entries[gap] = entry
            gap = position
    entries[gap] = np.uint64(0)


@kernel
def begin_growth(entries: KeyArray, counts: Numbers) -> None:
    """[1] Begin a second index, empty and twice as large; the array must have room for it."""
    size = counts[SIZE]
    start = 0
    while entries[size + start] != np.uint64(0):
        start += 1
    counts[SIZE] = 2 * size
    counts[SHIFT] -= 1
    counts[START] = (start + 1) & (size - 1)
    counts[MOVED] = 0


@kernel
def move(entries: KeyArray, counts: Numbers, num: int) -> int:
    """[2] Visit `num` entries of the old index, and those up to the next empty one, and move them into the new one.

    Returns how many were visited. At the end of the old index growth is over.
    """
    size, start, at, num_visited = counts[SIZE], counts[START], counts[MOVED], 0
    half = size >> 1
    shift = np.uint64(counts[SHIFT])
    while True:
        position = half + ((start + at) & (half - 1))
        entry = entries[position]
        if entry == np.uint64(0):
            if at >= half:  # once round, and round the run that may have grown past the beginning
                counts[MOVED] = ALL_MOVED
                return num_visited
            if num_visited >= num:
                counts[MOVED] = at + 1
                return num_visited
        else:
            target = size + np.int64(tag_in(entry) >> shift)
            while entries[target] != np.uint64(0):
                target = size + ((target + 1) & (size - 1))
            entries[target] = entry
            entries[position] = np.uint64(0)
        at += 1
        num_visited += 1


@kernel
def rows_in_tags(entries: KeyArray, counts: Numbers, low: int, high: int) -> Numbers:
    """Return numbers of all rows whose tag is at least `low` and less than `high`, in no order.

    Homes rise with the tag, so they are in one stretch of the index, or of each of the two while it grows.
    """
    found, num_found = np.empty(64, np.int64), 0
    base, shift = counts[SIZE], np.uint64(counts[SHIFT])
    while True:
        first, last = np.int64(np.uint64(low) >> shift), np.int64(np.uint64(high - 1) >> shift)
        for i in range(first, first + base):
            entry = entries[base + (i & (base - 1))]
            if entry == np.uint64(0):
                if i >= last:
                    break  # every entry whose home is up to `last` comes before
                continue
            if np.uint64(low) <= tag_in(entry) and tag_in(entry) < np.uint64(high):
                if num_found == len(found):
                    more = np.empty(2 * num_found, np.int64)
                    more[:num_found] = found
                    found = more
                found[num_found] = row_in(entry)
                num_found += 1
        if base != counts[SIZE] or counts[MOVED] == ALL_MOVED:
            return found[:num_found]
        base, shift = base >> 1, shift + np.uint64(1)
