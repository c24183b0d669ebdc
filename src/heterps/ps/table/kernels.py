"""The hot loops of a sparse table, compiled by numba: no GIL, a whole batch a call.

    rows    one flat block, a row is [key: 2 words | uses | clock | values: dim words | optimizer state | padding to an
            even count], seen as `words` (float32), as `pairs` (uint64) for the keys, as `marks` (uint32) for clocks.
            Rows lie without gaps: where one is removed the last one takes its place.

A table is larger than the caches, so a batch goes through in blocks: [1] hash the keys and prefetch their index
entries, [2] find the candidate row of each key by its tag and prefetch it, [3] verify the key in the row and use it.
The cache misses of a block then overlap instead of following one another. The optimizer's step on the rows of a block
is `update` (optimizers.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.hashing import mix64
from heterps.ps.keys.dedup import Positions
from heterps.ps.table.index import (
    ROWS,
    IndexLayout,
    Numbers,
    base_of,
    entry_for,
    home_of,
    inline,
    kernel,
    layout_of,
    point_to,
    remove,
    row_in,
    tag_in,
)
from heterps.ps.table.initializers import fill, fill_row
from heterps.ps.table.optimizers import update
from heterps.ps.table.prefetch import prefetch

BLOCK = 64
HEADER_WORDS = 4
USES, CLOCK = 2, 3  # words of the header, after the key
WORDS_PER_LINE = 16  # of a cache line


class TableBody(NamedTuple):
    """A table as the kernels see it. `counts[ROWS]` rows are in use; a new row takes the next number."""

    entries: KeyArray
    words: FloatArray
    pairs: KeyArray
    marks: NDArray[np.uint32]
    counts: Numbers
    stride: int  # words of a row
    dim: int
    seed: np.uint64  # already mixed
    init_kind: int
    init_size: float  # of the initial values
    quantiles: FloatArray  # of the normal distribution
    state: float  # initial optimizer state
    fades: FloatArray  # what a use of some age still counts, as in usage.py
    fade_shift: int


@inline
def _tag_of(key: np.uint64) -> np.uint64:
    return mix64(key) >> np.uint64(32)


@inline
def _fill(table: TableBody, key: np.uint64, out: FloatArray) -> None:
    """Make the initial values of a key's row."""
    fill(table.init_kind, np.float32(table.init_size), table.quantiles, key, table.seed, out)


@inline
def _probe(
    table: TableBody, layout: IndexLayout, position: int, tag: np.uint64, key: np.uint64, verify: bool
) -> tuple[int, int]:
    """Find the first entry from `position` on with this tag (and, to `verify`, this key): its (position, row).

    Where an empty entry comes first the key is not in the table: (its position, -1).
    """
    while True:
        entry = table.entries[position]
        if entry == np.uint64(0):
            return position, -1
        if tag_in(entry) == tag:
            row = row_in(entry)
            if not verify or table.pairs[row * table.stride // 2] == key:
                return position, row
        base = base_of(layout, position)
        position = base + ((position + 1) & (base - 1))


@kernel
def _create(table: TableBody, clock: np.uint32, keys: KeyArray, tags: KeyArray, homes: Numbers, found: Numbers) -> None:
    """Create a row for each of `keys[i]` with `found[i] < 0`, whose number is `found[i]` then; one for equal keys.

    All in one loop over plain arrays: a function inlined here would count references to every array for every row.
    """
    entries, words, pairs, marks, counts = table.entries, table.words, table.pairs, table.marks, table.counts
    stride, dim, layout, num_rows = table.stride, table.dim, layout_of(table.counts), table.counts[ROWS]
    initial = np.empty(dim, np.float32)
    for i in range(len(keys)):
        if found[i] >= 0:
            continue
        position, key = homes[i], keys[i]
        base = base_of(layout, position)
        while entries[position] != np.uint64(0):
            row = row_in(entries[position])
            if tag_in(entries[position]) == tags[i] and pairs[row * stride // 2] == key:
                break
            position = base + ((position + 1) & (base - 1))
        else:
            row = num_rows
            num_rows += 1
            entries[position] = entry_for(tags[i], row)
            at = row * stride
            pairs[at // 2] = key
            words[at + USES] = np.float32(1.0)
            marks[at + CLOCK] = clock
            fill_row(table.init_kind, np.float32(table.init_size), table.quantiles, key, table.seed, initial)
            at += HEADER_WORDS
            for j in range(len(initial)):
                words[at + j] = initial[j]
            for j in range(at + dim, (row + 1) * stride):
                words[j] = np.float32(table.state)
        found[i] = row
    counts[ROWS] = num_rows


@inline
def _resolve(
    table: TableBody, clock: np.uint32, create: bool, keys: KeyArray, tags: KeyArray, homes: Numbers, found: Numbers
) -> None:
    """Set `found[i]` to the row of `keys[i]`, for the keys of one block; a new key's is created, or -1."""
    layout, num_new = layout_of(table.counts), 0
    for i in range(len(keys)):  # [1]
        tags[i] = _tag_of(keys[i])
        homes[i] = home_of(layout, tags[i])
        prefetch(table.entries, homes[i])
    for i in range(len(keys)):  # [2]
        homes[i], row = _probe(table, layout, homes[i], tags[i], keys[i], False)
        if row >= 0:
            for word in range(row * table.stride, (row + 1) * table.stride, WORDS_PER_LINE):
                prefetch(table.words, word)
        else:
            num_new += 1
        found[i] = row
    if create and num_new:
        _create(table, clock, keys, tags, homes, found)
    for i in range(len(keys)):  # [3]
        if not create and found[i] < 0:
            continue
        if table.pairs[found[i] * table.stride // 2] != keys[i]:  # another key has this tag: look on, looking closely
            homes[i], found[i] = _probe(table, layout, homes[i], tags[i], keys[i], True)
            if create and found[i] < 0:
                one = slice(i, i + 1)
                _create(table, clock, keys[one], tags[one], homes[one], found[one])


@inline
def _note_use(table: TableBody, row: int, clock: np.uint32) -> None:
    """Note one more use of a row, at this clock; the earlier ones fade by the clocks in between."""
    at = row * table.stride
    age = clock - table.marks[at + CLOCK]
    if age >= np.uint32(2**31):  # the row came from a table that is ahead
        age = np.uint32(0)
    step: int = min(np.int64(age) >> table.fade_shift, len(table.fades) - 1)
    table.words[at + USES] = table.words[at + USES] * table.fades[step] + np.float32(1.0)
    table.marks[at + CLOCK] = clock


@kernel
def pull(table: TableBody, limit: int, clock: int, keys: KeyArray, start: int, stop: int, out: FloatArray) -> int:
    """Copy the values of `keys[start:stop]` to the same places of `out`, creating rows for new keys.

    Stops before a block that could bring the table over `limit` rows; returns how many keys are done.
    """
    tags, homes, found = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    now, size, flat_out = np.uint32(clock), np.uint64(table.dim), out.reshape(-1)
    for begin in range(start, stop, BLOCK):
        block = keys[begin : min(begin + BLOCK, stop)]
        if table.counts[ROWS] + len(block) > limit:
            return begin
        _resolve(table, now, True, block, tags, homes, found)
        for i in range(len(block)):  # no slices: each would count references, which takes longer than to copy a row
            first, target = np.uint64(found[i] * table.stride + HEADER_WORDS), np.uint64((begin + i) * table.dim)
            for j in range(size):
                flat_out[target + j] = table.words[first + j]
    return stop


@kernel
def peek(table: TableBody, keys: KeyArray, out: FloatArray) -> None:
    """Do as `pull`, but create nothing: `out` gets the initial values of keys that have no row."""
    tags, homes, found = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for begin in range(0, len(keys), BLOCK):
        block = keys[begin : begin + BLOCK]
        _resolve(table, np.uint32(0), False, block, tags, homes, found)
        for i in range(len(block)):
            target = out[begin + i]
            if found[i] < 0:
                _fill(table, block[i], target)
                continue
            first = found[i] * table.stride + HEADER_WORDS
            values = table.words[first : first + table.dim]
            for j in range(len(values)):
                target[j] = values[j]


@kernel
def push(
    table: TableBody,
    limit: int,
    clock: int,
    keys: KeyArray,
    start: int,
    stop: int,
    grads: FloatArray,
    kind: int,
    coefficients: FloatArray,
) -> int:
    """Make a step for each of `keys[start:stop]`, which must all differ. Stops and returns as `pull` does."""
    tags, homes, found = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    now, dim, flat_grads = np.uint32(clock), table.dim, grads.reshape(-1)
    for begin in range(start, stop, BLOCK):
        block = keys[begin : min(begin + BLOCK, stop)]
        if table.counts[ROWS] + len(block) > limit:
            return begin
        _resolve(table, now, True, block, tags, homes, found)
        for i in range(len(block)):
            _note_use(table, found[i], now)
            found[i] = found[i] * table.stride + HEADER_WORDS
        update(kind, table.words, found[: len(block)], dim, flat_grads, begin, coefficients)
    return stop


@kernel
def push_sums(
    table: TableBody,
    limit: int,
    clock: int,
    keys: KeyArray,
    start: int,
    stop: int,
    grads: FloatArray,
    sources: Positions,
    begins: Positions,
    ends: Positions,
    kind: int,
    coefficients: FloatArray,
) -> int:
    """Push; the gradient of `keys[u]` is the sum of the rows `sources[begins[u]:ends[u]]` of `grads`, in order."""
    tags, homes, found = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    now, dim = np.uint32(clock), table.dim
    size, totals = np.uint64(dim), np.empty(BLOCK * dim, np.float32)
    for begin in range(start, stop, BLOCK):
        block = keys[begin : min(begin + BLOCK, stop)]
        if table.counts[ROWS] + len(block) > limit:
            return begin
        _resolve(table, now, True, block, tags, homes, found)
        for i in range(len(block)):
            total, source = np.uint64(i * dim), np.uint64(sources[begins[begin + i]])
            for j in range(size):
                totals[total + j] = grads[source, j]
            for k in range(begins[begin + i] + 1, ends[begin + i]):
                source = np.uint64(sources[k])
                for j in range(size):
                    totals[total + j] += grads[source, j]
            _note_use(table, found[i], now)
            found[i] = found[i] * table.stride + HEADER_WORDS
        update(kind, table.words, found[: len(block)], dim, totals, 0, coefficients)
    return stop


@kernel
def find(table: TableBody, keys: KeyArray, out: Numbers) -> None:
    """Set `out[i]` to the number of the row of `keys[i]`, or to -1 where it has none."""
    tags, homes = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64)
    for begin in range(0, len(keys), BLOCK):
        block = keys[begin : begin + BLOCK]
        _resolve(table, np.uint32(0), False, block, tags, homes, out[begin : begin + BLOCK])


@kernel
def load(
    table: TableBody,
    limit: int,
    keys: KeyArray,
    start: int,
    stop: int,
    values: FloatArray,
    state: FloatArray,
    uses: FloatArray,
    clocks: NDArray[np.uint32],
) -> int:
    """Load rows with these values, state and header for `keys[start:stop]`. Stops and returns as `pull` does."""
    tags, homes, found = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for begin in range(start, stop, BLOCK):
        block = keys[begin : min(begin + BLOCK, stop)]
        if table.counts[ROWS] + len(block) > limit:
            return begin
        _resolve(table, np.uint32(0), True, block, tags, homes, found)
        for i in range(len(block)):
            at = found[i] * table.stride
            table.words[at + USES] = uses[begin + i]
            table.marks[at + CLOCK] = clocks[begin + i]
            at += HEADER_WORDS
            for j in range(table.dim):
                table.words[at + j] = values[begin + i, j]
            for j in range(state.shape[1]):
                table.words[at + table.dim + j] = state[begin + i, j]
    return stop


@kernel
def take(table: TableBody, keys: KeyArray, out: KeyArray) -> int:
    """Remove the rows of those `keys` that have one, and copy each whole to the next row of `out`, [n, stride // 2].

    Returns how many there were.
    """
    layout, pairs, num_taken = layout_of(table.counts), table.stride // 2, 0
    for i in range(len(keys)):
        tag = _tag_of(keys[i])
        position, row = _probe(table, layout, home_of(layout, tag), tag, keys[i], True)
        if row >= 0:
            for j in range(pairs):
                out[num_taken, j] = table.pairs[row * pairs + j]
            num_taken += 1
            remove(table.entries, table.counts, position)
            _fill_gap(table, row)
    return num_taken


@inline
def _fill_gap(table: TableBody, row: int) -> None:
    """Put the last row in the place of `row`, which has no entry any more."""
    last, pairs = table.counts[ROWS] - 1, table.stride // 2
    table.counts[ROWS] = last
    if row != last:
        point_to(table.entries, table.counts, _tag_of(table.pairs[last * pairs]), last, row)
        for j in range(pairs):
            table.pairs[row * pairs + j] = table.pairs[last * pairs + j]


@kernel
def tags_of(keys: KeyArray) -> NDArray[np.uint32]:
    """Return the upper half of each key's hash."""
    out = np.empty(len(keys), np.uint32)
    for i in range(len(keys)):
        out[i] = np.uint32(_tag_of(keys[i]))
    return out
