"""RowStore: the memory of a sparse table, its index and its rows, and how both grow without a long pause."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from heterps.config import Initializer, Optimizer
from heterps.hashing import mix64
from heterps.ps.table import index, kernels
from heterps.ps.table.frozen import FrozenRows
from heterps.ps.table.hand import NUM_TAGS, Headers
from heterps.ps.table.initializers import GOLDEN, kind_and_size, quantiles
from heterps.ps.table.memory import INDEX_RESERVE_BYTES, release, reserve
from heterps.ps.table.optimizers import initial_state, state_words
from heterps.ps.table.usage import Fading

MAX_LOAD = 0.7
LEAST_INDEX = 1024
MAX_ROWS = 2**31
STEP_KEYS = 8192  # while the index grows, a longer batch goes through in steps of so many keys
MOVES_PER_KEY = 4  # index entries visited for each key of a batch while the index grows


class RowStore:
    """Room for rows of `dim` values with the state of `optimizer`; the kernels work on its `body`.

    The index grows step by step (see index.py): no step of a batch visits more than MOVES_PER_KEY entries for each of
    its keys, and the run of neighbours that the last of them is in. The rows never move, as long as the system grants
    the addresses (see memory.py).
    """

    def __init__(self, dim: int, optimizer: Optimizer, seed: int, init: Initializer, fading: Fading) -> None:
        stride = -(-(kernels.HEADER_WORDS + dim + state_words(optimizer, dim)) // 2) * 2
        # Mixed, so that tables of different seeds have no rows in common: key ^ seed alone is the key of other rows.
        mixed = np.uint64(mix64(np.uint64(seed) ^ GOLDEN))
        self.row_bytes = 4 * stride
        self.num_moved = 0  # index entries visited by growth, so far
        self._frozen: WeakSet[FrozenRows] = WeakSet()
        self._counts = index.make_counts(LEAST_INDEX)
        self._index = reserve(2 * LEAST_INDEX * 8, INDEX_RESERVE_BYTES, spare_small=True)
        self._memory = reserve(LEAST_INDEX * self.row_bytes)
        self._constants = (
            stride, dim, mixed, *kind_and_size(init), quantiles(), initial_state(optimizer), *fading
        )  # fmt: skip
        self._bind()

    def __len__(self) -> int:
        return int(self._counts[index.ROWS])

    @property
    def num_bytes(self) -> int:
        """Memory in use: rows and index, the old one included while it grows."""
        entries = int(self._counts[index.SIZE]) * (3 if self.is_growing else 2) // 2
        return len(self) * self.row_bytes + 8 * entries

    @property
    def is_growing(self) -> bool:
        return bool(self._counts[index.MOVED] != index.ALL_MOVED)

    @property
    def index_size(self) -> int:
        """Entries of the index, without those of an old one."""
        return int(self._counts[index.SIZE])

    def finish_growth(self) -> None:
        """Grow to the end at once, where the index is growing."""
        if self.is_growing:
            self._move(index.ALL_MOVED)

    def words(self) -> NDArray[np.float32]:
        """Return all rows, [n, words of a row]: a view."""
        return self.body.words[: len(self) * self.row_bytes // 4].reshape(-1, self.row_bytes // 4)

    def headers(self, rows: NDArray[np.int64]) -> Headers:
        """Return the headers of the rows of these numbers."""
        words = self.words()
        keys = words.view(np.uint64)[rows, 0]
        return Headers(
            kernels.tags_of(keys), words[rows, kernels.USES], words.view(np.uint32)[rows, kernels.CLOCK], rows
        )

    def in_tags(self, low: int, high: int) -> Headers:
        """Find all rows whose tag is at least `low` and less than `high`, in no order; places are their numbers."""
        if (high - low) * int(self._counts[index.SIZE]) < NUM_TAGS * len(self):
            return self.headers(index.rows_in_tags(self.body.entries, self._counts, low, high))
        every = self.headers(np.arange(len(self)))  # fewer than the entries to look at: rows went, the index stayed
        return every.select((every.tags >= low) & (every.tags < high))

    def keys_at(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the keys of the rows of these numbers."""
        keys: NDArray[np.uint64] = self.words().view(np.uint64)[places, 0]
        return keys

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the numbers of the rows of `keys`; -1 where a key has none."""
        found = np.empty(len(keys), np.int64)
        kernels.find(self.body, keys, found)
        return found

    def preserve(self, keys: NDArray[np.uint64]) -> None:
        """Keep the rows of `keys`, which are about to change, for those who read rows as they were."""
        if self.frozen:
            self._preserve(self._places(keys))

    def freeze(self, rows: FrozenRows) -> None:
        """Keep rows for `rows` from now on, before they change, as long as it wants any."""
        self._frozen.add(rows)

    @property
    def frozen(self) -> list[FrozenRows]:
        """Those that want rows as they were."""
        return [rows for rows in self._frozen if rows.num_left] if self._frozen else []

    def take(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Remove the rows of those `keys` that have one, and return them whole, [n, words of a row]."""
        if self.frozen:
            places = self._places(keys)
            last = np.arange(max(len(self) - len(places), 0), len(self))  # they take the places of those that go
            self._preserve(np.concatenate([places, last]))
        out = np.empty((len(keys), self.row_bytes // 8), np.uint64)
        num_taken = kernels.take(self.body, keys, out)
        return out[:num_taken].view(np.float32)

    def drop(self, keys: NDArray[np.uint64]) -> None:
        """Remove the rows of `keys`."""
        self.take(keys)

    def in_steps(self, num: int, work: Callable[[kernels.TableBody, int, int, int], int]) -> None:
        """Call `work(body, limit, start, stop)` until all `num` keys are done, making room where it stops short.

        It returns how many are done: fewer than `stop` where the rows might become more than `limit`. Where the system
        refuses memory, what is done stays done and the store stays whole.
        """
        done = 0
        while done < num:
            stop = num
            if self.is_growing:
                stop = min(done + STEP_KEYS, num)
                self._move(MOVES_PER_KEY * (stop - done))
            done = work(self.body, self._limit, done, stop)
            if done < stop:
                self._make_room(kernels.BLOCK)

    def _places(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the numbers of the rows of those keys that have one."""
        found = self.find(keys)
        return found[found >= 0]

    def _preserve(self, places: NDArray[np.int64]) -> None:
        for rows in self.frozen:
            rows.preserve(places)

    def _make_room(self, extra: int) -> None:
        num_rows = len(self) + extra
        if num_rows > MAX_ROWS:
            raise MemoryError(f"a table shard holds at most {MAX_ROWS:,} rows; use more shards")
        if num_rows * self.row_bytes > len(self._memory):
            self._memory = _larger(self._memory, reserve(num_rows * self.row_bytes))
            self._bind()  # at once: the next step may be refused
        if num_rows > MAX_LOAD * self._counts[index.SIZE]:
            self.finish_growth()
            size = int(self._counts[index.SIZE])
            if 4 * size * 8 > len(self._index):
                self._index = _larger(self._index, reserve(4 * size * 8, INDEX_RESERVE_BYTES, spare_small=True))
                self._bind()
            index.begin_growth(self.body.entries, self._counts)
            self._bind()

    def _move(self, num: int) -> None:
        self.num_moved += index.move(self.body.entries, self._counts, num)
        if not self.is_growing:
            size = int(self._counts[index.SIZE])
            release(self._index, size // 2 * 8, size * 8)

    def _bind(self) -> None:
        num_rows = len(self._memory) // self.row_bytes
        memory = self._memory[: num_rows * self.row_bytes]
        self.body = kernels.TableBody(
            self._index[: len(self._index) // 8 * 8].view(np.uint64),
            memory.view(np.float32), memory.view(np.uint64), memory.view(np.uint32), self._counts, *self._constants,
        )  # fmt: skip
        self._limit = min(int(MAX_LOAD * self._counts[index.SIZE]), num_rows, MAX_ROWS)


def _larger(old: NDArray[np.uint8], new: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return `new`, with what `old` holds at its beginning."""
    new[: len(old)] = old
    return new
