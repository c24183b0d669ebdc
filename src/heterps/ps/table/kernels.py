"""The hot loops of a sparse table, compiled by numba: no GIL, a whole batch a call.

    keys --mix64--> hash --top bits--> index entry --row number--> row

    index   uint64[capacity], a power of two, open addressing with linear probing. An entry is
            (tag << 32) | (row + 1), where the tag is the upper half of the hash; 0 is an empty entry.
            An entry's home is given by the top bits of its tag alone, so a larger index is filled from a smaller one
            in order, without looking at the rows.
    rows    one flat block, a row is [key: 2 words | uses | clock | values: dim words | optimizer state | padding to an
            even count], seen as `words` (float32), as `pairs` (uint64) for the keys, as `marks` (uint32) for clocks.
            Rows lie without gaps: where one is removed the last one takes its place.

A table is larger than the caches, so a batch goes through in blocks: [1] hash the keys and prefetch their index
entries, [2] find the candidate row of each key by its tag and prefetch it, [3] verify the key in the row and use it.
The cache misses of a block then overlap instead of following one another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps.hashing import mix64
from heterps.ps.table.optimizers import update
from heterps.ps.table.prefetch import prefetch

Words = NDArray[np.float32]
Keys = NDArray[np.uint64]
Numbers = NDArray[np.int64]

BLOCK = 64
HEADER_WORDS = 4
USES, CLOCK = 2, 3  # words of the header, after the key
WORDS_PER_LINE = 16  # of a cache line
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW_32 = np.uint64(0xFFFFFFFF)
# Divisions follow NumPy, without a check for zero: that check would keep the optimizers' loops from being vectorised.
_kernel = njit(nogil=True, cache=True, error_model="numpy")
_inline = njit(nogil=True, cache=True, inline="always")


class Body(NamedTuple):
    """A table as the kernels see it. `num_rows[0]` rows are in use; a new row takes the next number."""

    entries: Keys
    words: Words
    pairs: Keys
    marks: NDArray[np.uint32]
    num_rows: Numbers
    stride: int  # words of a row
    dim: int
    seed: np.uint64  # already mixed
    scale: float  # of the initial values
    state: float  # initial optimizer state
    fades: Words  # what a use of some age still counts, as in usage.py
    fade_shift: int


@_inline
def initial_value(key: np.uint64, seed: np.uint64, column: int, scale: np.float32) -> np.float32:
    """Uniform in [-scale, scale), a pure function of (seed, key, column): the same on every shard, in every order."""
    bits = mix64(mix64(key ^ seed) + np.uint64(column + 1) * GOLDEN) >> np.uint64(40)
    return (np.float32(bits) * np.float32(2.0**-23) - np.float32(1.0)) * scale


@_inline
def _create(table: Body, position: int, tag: np.uint64, key: np.uint64, clock: np.uint32) -> int:
    row = table.num_rows[0]
    table.num_rows[0] = row + 1
    table.entries[position] = (tag << np.uint64(32)) | np.uint64(row + 1)
    table.pairs[row * table.stride // 2] = key
    table.words[row * table.stride + USES] = np.float32(1.0)
    table.marks[row * table.stride + CLOCK] = clock
    values = row * table.stride + HEADER_WORDS
    for j in range(table.dim):
        table.words[values + j] = initial_value(key, table.seed, j, np.float32(table.scale))
    for j in range(values + table.dim, (row + 1) * table.stride):
        table.words[j] = np.float32(table.state)
    return row


@_inline
def _probe(table: Body, position: int, tag: np.uint64, key: np.uint64, verify: bool) -> tuple[int, int]:
    """From `position` on, the first entry with this tag (and, to `verify`, this key): its (position, row).

    Where an empty entry comes first the key is not in the table: (its position, -1).
    """
    mask = len(table.entries) - 1
    while True:
        entry = table.entries[position]
        if entry == np.uint64(0):
            return position, -1
        if entry >> np.uint64(32) == tag:
            row = np.int64(entry & _LOW_32) - 1
            if not verify or table.pairs[row * table.stride // 2] == key:
                return position, row
        position = (position + 1) & mask


@_inline
def _resolve(
    table: Body, shift: np.uint64, clock: np.uint32, keys: Keys, tags: Keys, homes: Numbers, found: Numbers
) -> None:
    """`found[i]` = the row of `keys[i]`, created where it is new, for the keys of one block."""
    for i in range(len(keys)):  # [1]
        tags[i] = mix64(keys[i]) >> np.uint64(32)
        homes[i] = np.int64(tags[i] >> shift)
        prefetch(table.entries, homes[i])
    for i in range(len(keys)):  # [2]
        homes[i], row = _probe(table, homes[i], tags[i], keys[i], False)
        if row < 0:
            row = _create(table, homes[i], tags[i], keys[i], clock)
        else:
            for word in range(row * table.stride, (row + 1) * table.stride, WORDS_PER_LINE):
                prefetch(table.words, word)
        found[i] = row
    for i in range(len(keys)):  # [3]
        if table.pairs[found[i] * table.stride // 2] != keys[i]:  # another key has this tag: look on, looking closely
            position, row = _probe(table, homes[i], tags[i], keys[i], True)
            found[i] = _create(table, position, tags[i], keys[i], clock) if row < 0 else row


@_inline
def _note_use(table: Body, row: int, clock: np.uint32) -> None:
    """One more use of a row, at this clock; the earlier ones fade by the clocks in between."""
    at = row * table.stride
    age = clock - table.marks[at + CLOCK]
    if age >= np.uint32(2**31):  # the row came from a table that is ahead
        age = np.uint32(0)
    step: int = min(np.int64(age) >> table.fade_shift, len(table.fades) - 1)
    table.words[at + USES] = table.words[at + USES] * table.fades[step] + np.float32(1.0)
    table.marks[at + CLOCK] = clock


@_inline
def _home_shift(index: Keys) -> np.uint64:
    """How far a tag is shifted right to give its home in this index."""
    shift = 32
    while (1 << (32 - shift)) < len(index):
        shift -= 1
    return np.uint64(shift)


@_kernel
def pull(table: Body, limit: int, clock: int, keys: Keys, start: int, out: Words) -> int:
    """Copy the values of `keys[start:]` to the same places of `out`, creating rows for new keys.

    Stops before a block that could bring the table over `limit` rows; returns how many keys are done.
    """
    tags, homes, found = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    shift, now = _home_shift(table.entries), np.uint32(clock)
    for begin in range(start, len(keys), BLOCK):
        block = keys[begin : begin + BLOCK]
        if table.num_rows[0] + len(block) > limit:
            return begin
        _resolve(table, shift, now, block, tags, homes, found)
        for i in range(len(block)):
            first = found[i] * table.stride + HEADER_WORDS
            values, target = table.words[first : first + table.dim], out[begin + i]
            for j in range(len(values)):
                target[j] = values[j]
    return len(keys)


@_kernel
def peek(table: Body, keys: Keys, out: Words) -> None:
    """As `pull`, but creates nothing: `out` gets the initial values of keys that have no row."""
    shift = _home_shift(table.entries)
    for i in range(len(keys)):
        tag = mix64(keys[i]) >> np.uint64(32)
        _, row = _probe(table, np.int64(tag >> shift), tag, keys[i], True)
        for j in range(table.dim):
            if row < 0:
                out[i, j] = initial_value(keys[i], table.seed, j, np.float32(table.scale))
            else:
                out[i, j] = table.words[row * table.stride + HEADER_WORDS + j]


@_kernel
def push(
    table: Body, limit: int, clock: int, keys: Keys, start: int, grads: Words, kind: int, coefficients: Words
) -> int:
    """One optimizer step for each of `keys[start:]`, which must all differ. Stops and returns as `pull` does."""
    tags, homes, found = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    shift, now = _home_shift(table.entries), np.uint32(clock)
    dim = table.dim
    for begin in range(start, len(keys), BLOCK):
        block = keys[begin : begin + BLOCK]
        if table.num_rows[0] + len(block) > limit:
            return begin
        _resolve(table, shift, now, block, tags, homes, found)
        for i in range(len(block)):
            _note_use(table, found[i], now)
            row = table.words[found[i] * table.stride + HEADER_WORDS : (found[i] + 1) * table.stride]
            update(kind, row[:dim], row[dim : 2 * dim], row[2 * dim : 3 * dim], grads[begin + i], coefficients)
    return len(keys)


@_kernel
def known(table: Body, keys: Keys, out: NDArray[np.bool_]) -> None:
    """`out[i]` = whether `keys[i]` has a row."""
    shift = _home_shift(table.entries)
    for i in range(len(keys)):
        tag = mix64(keys[i]) >> np.uint64(32)
        _, row = _probe(table, np.int64(tag >> shift), tag, keys[i], True)
        out[i] = row >= 0


@_kernel
def load(table: Body, keys: Keys, values: Words, state: Words, uses: Words, clocks: NDArray[np.uint32]) -> None:
    """Rows with these values, state and header for `keys`; the table must have room for them all."""
    tags, homes, found = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    shift, now = _home_shift(table.entries), np.uint32(0)
    for begin in range(0, len(keys), BLOCK):
        block = keys[begin : begin + BLOCK]
        _resolve(table, shift, now, block, tags, homes, found)
        for i in range(len(block)):
            at = found[i] * table.stride
            table.words[at + USES] = uses[begin + i]
            table.marks[at + CLOCK] = clocks[begin + i]
            at += HEADER_WORDS
            for j in range(table.dim):
                table.words[at + j] = values[begin + i, j]
            for j in range(state.shape[1]):
                table.words[at + table.dim + j] = state[begin + i, j]


@_kernel
def take(table: Body, keys: Keys, out: Keys) -> int:
    """Remove the rows of those `keys` that have one, and copy each whole to the next row of `out`, [n, stride // 2].

    Returns how many there were.
    """
    shift, pairs, num_taken = _home_shift(table.entries), table.stride // 2, 0
    for i in range(len(keys)):
        tag = mix64(keys[i]) >> np.uint64(32)
        position, row = _probe(table, np.int64(tag >> shift), tag, keys[i], True)
        if row >= 0:
            for j in range(pairs):
                out[num_taken, j] = table.pairs[row * pairs + j]
            num_taken += 1
            _remove_entry(table.entries, shift, position)
            _fill_gap(table, shift, row)
    return num_taken


@_inline
def _remove_entry(entries: Keys, shift: np.uint64, gap: int) -> None:
    """Empty the entry at `gap`, and move later ones of its run up, so that each is still found from its home."""
    mask = len(entries) - 1
    position = gap
    while True:
        position = (position + 1) & mask
        entry = entries[position]
        if entry == np.uint64(0):
            break
        home = np.int64((entry >> np.uint64(32)) >> shift)
        if (position - home) & mask >= (position - gap) & mask:  # its home is not behind the gap
            entries[gap] = entry
            gap = position
    entries[gap] = np.uint64(0)


@_inline
def _fill_gap(table: Body, shift: np.uint64, row: int) -> None:
    """The last row takes the place of `row`, which has no entry any more."""
    last, pairs = table.num_rows[0] - 1, table.stride // 2
    table.num_rows[0] = last
    if row == last:
        return
    tag = mix64(table.pairs[last * pairs]) >> np.uint64(32)
    wanted = (tag << np.uint64(32)) | np.uint64(last + 1)
    position, mask = np.int64(tag >> shift), len(table.entries) - 1
    while table.entries[position] != wanted:
        position = (position + 1) & mask
    table.entries[position] = (tag << np.uint64(32)) | np.uint64(row + 1)
    for j in range(pairs):
        table.pairs[row * pairs + j] = table.pairs[last * pairs + j]


@_kernel
def rehash(old: Keys, new: Keys) -> None:
    """Move every entry of the index `old` into the empty, larger index `new`."""
    shift, mask = _home_shift(new), len(new) - 1
    for entry in old:
        if entry != np.uint64(0):
            position = np.int64((entry >> np.uint64(32)) >> shift)
            while new[position] != np.uint64(0):
                position = (position + 1) & mask
            new[position] = entry
