"""The loops of a ColdStore, compiled by numba: an index of keys in memory, rows in a mapped file.

key --mix64--> tag (upper half of the hash) --(tag * size) >> 32--> home --linear probing--> entry

entries  uint64[size], any size: (tag << 32) | (slot + 1), 0 is empty. Homes rise with the tag, so an index of
         another size is filled in order, and a removed entry's followers move back by their tags alone: nothing
         on disk is read for either.
slots    in the file, [key: 2 words | the row's words]. A free slot holds in the place of the key which slot is
         free after it, so that the list of free slots takes no memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.arrays import KeyArray
from heterps.hashing import mix64
from heterps.ps.table.index import Numbers

RowWords = NDArray[np.uint32]

KEY_WORDS = 2
USED, FREE = 0, 1  # of `marks`: slots ever used, and the first free one + 1 (0: none is)
_32 = np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_kernel = njit(nogil=True, cache=True)
_inline = njit(nogil=True, cache=True, inline="always")


class StoreBody(NamedTuple):
    """A store as the kernels see it."""

    entries: KeyArray
    words: RowWords  # of the file
    pairs: KeyArray  # the same bytes, for the keys
    marks: Numbers
    stride: int  # words of a slot, even


@_inline
def _home(tag: np.uint64, size: int) -> int:
    return np.int64((tag * np.uint64(size)) >> _32)


@_inline
def _find(store: StoreBody, key: np.uint64) -> tuple[int, int]:
    """Find (position of the entry, slot) of `key`, or (position of the empty entry that ends the search, -1)."""
    size = len(store.entries)
    tag = mix64(key) >> _32
    position = _home(tag, size)
    while True:
        entry = store.entries[position]
        if entry == np.uint64(0):
            return position, -1
        if entry >> _32 == tag:
            slot = np.int64(entry & _LOW_32) - 1
            if store.pairs[slot * store.stride // 2] == key:
                return position, slot
        position = position + 1 if position + 1 < size else 0


@_inline
def _close_gap(entries: KeyArray, gap: int) -> None:
    """Empty the entry at `gap`, and move back the entries after it that a search would no longer reach."""
    size = len(entries)
    position = gap
    while True:
        position = position + 1 if position + 1 < size else 0
        entry = entries[position]
        if entry == np.uint64(0):
            entries[gap] = np.uint64(0)
            return
        from_home = position - _home(entry >> _32, size)
        from_gap = position - gap
        if (from_home if from_home >= 0 else from_home + size) >= (from_gap if from_gap >= 0 else from_gap + size):
            entries[gap] = entry
            gap = position


@_kernel
def find(store: StoreBody, keys: KeyArray, slots: Numbers) -> int:
    """Set `slots[i]` to the slot of `keys[i]`, or -1; return how many have one."""
    found = 0
    for i in range(len(keys)):
        _, slot = _find(store, keys[i])
        slots[i] = slot
        found += slot >= 0
    return found


@_kernel
def put(store: StoreBody, keys: KeyArray, rows: RowWords, slots: Numbers) -> int:
    """Write `rows`; a new key takes a free slot, or the next. There must be room. Returns how many keys are new."""
    new = 0
    for i in range(len(keys)):
        position, slot = _find(store, keys[i])
        if slot < 0:
            new += 1
            if store.marks[FREE] > 0:
                slot = store.marks[FREE] - 1
                store.marks[FREE] = np.int64(store.pairs[slot * store.stride // 2])
            else:
                slot = store.marks[USED]
                store.marks[USED] = slot + 1
            store.entries[position] = ((mix64(keys[i]) >> _32) << _32) | np.uint64(slot + 1)
            store.pairs[slot * store.stride // 2] = keys[i]
        slots[i] = slot
        first = slot * store.stride + KEY_WORDS
        for j in range(rows.shape[1]):
            store.words[first + j] = rows[i, j]
    return new


@_kernel
def gather(store: StoreBody, slots: Numbers, out: RowWords) -> None:
    """Copy the rows in `slots` to `out`; a slot of -1 leaves its place as it is."""
    for i in range(len(slots)):
        if slots[i] >= 0:
            first = slots[i] * store.stride + KEY_WORDS
            for j in range(out.shape[1]):
                out[i, j] = store.words[first + j]


@_kernel
def gather_keys(store: StoreBody, slots: Numbers, out: KeyArray) -> None:
    """Set `out[i]` to the key in `slots[i]`."""
    for i in range(len(slots)):
        out[i] = store.pairs[slots[i] * store.stride // 2]


@_kernel
def remove(store: StoreBody, keys: KeyArray) -> None:
    """Forget `keys`, which are all there; their slots become free."""
    for i in range(len(keys)):
        position, slot = _find(store, keys[i])
        _close_gap(store.entries, position)
        store.pairs[slot * store.stride // 2] = np.uint64(store.marks[FREE])
        store.marks[FREE] = slot + 1


@_kernel
def live_slots(entries: KeyArray, out: Numbers) -> None:
    """List every slot in use, in no order; `out` has as many places."""
    at = 0
    for entry in entries:
        if entry != np.uint64(0):
            out[at] = np.int64(entry & _LOW_32) - 1
            at += 1


@_kernel
def rehash(old: KeyArray, new: KeyArray) -> None:
    """Move every entry of the index `old` into the empty index `new`."""
    for entry in old:
        if entry != np.uint64(0):
            position = _home(entry >> _32, len(new))
            while new[position] != np.uint64(0):
                position = position + 1 if position + 1 < len(new) else 0
            new[position] = entry


@_kernel
def slots_in_tags(entries: KeyArray, low: int, high: int) -> tuple[Numbers, NDArray[np.uint32]]:
    """Return all slots whose key's tag is at least `low` and less than `high`, in no order, and these tags."""
    size = len(entries)
    first, last = _home(np.uint64(low), size), _home(np.uint64(high - 1), size)
    slots, tags, num_found = np.empty(64, np.int64), np.empty(64, np.uint32), 0
    for i in range(first, first + size):
        entry = entries[i if i < size else i - size]
        if entry == np.uint64(0):
            if i >= last:
                break  # every entry whose home is up to `last` comes before
            continue
        tag = entry >> _32
        if np.uint64(low) <= tag and tag < np.uint64(high):
            if num_found == len(slots):
                more_slots, more_tags = np.empty(2 * num_found, np.int64), np.empty(2 * num_found, np.uint32)
                more_slots[:num_found], more_tags[:num_found] = slots, tags
                slots, tags = more_slots, more_tags
            slots[num_found], tags[num_found] = np.int64(entry & _LOW_32) - 1, np.uint32(tag)
            num_found += 1
    return slots[:num_found], tags[:num_found]
