"""TieredTable: a table larger than its memory. Hot rows in a SparseTable, the rest in a ColdStore on disk.

    pull, push --keys--> [1] which are in memory?  --no--> [2] make room: the coldest rows go down
                              |                            [3] those on disk come up, in one batch
                              v                                  |
                         [4] the SparseTable does what it does <-+
    step, between batches: [5] some of the coldest rows go down, so that [2] mostly finds room

What goes down is what counts least by uses that fade with time (usage.py). A row moves with its state and header, bit
for bit, and every operation is done by the SparseTable on rows in memory: results do not depend on the budget.

    memory_bytes >= rows in memory + their index + the index of the rows on disk (10 to 12.5 bytes each)

Room on disk for every row of a table that is over its budget is taken before a batch changes anything. So only the
call that brings new keys can fail for want of room, it fails whole, and going down never does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heterps.config import Schedule, Tiers
from heterps.errors import ConfigError
from heterps.ps.dedup import as_keys, make_lookup, sum_rows
from heterps.ps.table import kernels
from heterps.ps.table.cold import MAPPED_BYTES, ColdStore
from heterps.ps.table.index import ALL_MOVED
from heterps.ps.table.optimizers import state_words
from heterps.ps.table.sparse import Rows, SparseTable, TableCounters
from heterps.ps.table.store import MAX_LOAD
from heterps.ps.table.usage import faded, make_fading

LEAST_ROWS = 256
"""Rows that must fit in memory, or a table would do nothing but read and write its disk."""
STEP_ROWS = 1024
PART_ROWS = 1 << 16  # rows of a copy from or to disk
_USES, _CLOCK, _HEADER_WORDS = 0, 1, 2  # of a row on disk


@dataclass(frozen=True)
class TierCounts:
    """What is where, and what has moved since the table was made."""

    memory_rows: int
    disk_rows: int
    memory_bytes: int
    disk_bytes: int
    num_hits: int  # rows that a pull or push found in memory
    num_promotions: int  # rows that a pull or push had to bring up
    num_demotions: int

    @property
    def hit_rate(self) -> float | None:
        """Of the known rows that pulls and pushes used, the part that was in memory; None before the first."""
        num_used = self.num_hits + self.num_promotions
        return self.num_hits / num_used if num_used else None

    @classmethod
    def total(cls, counts: Iterable[Self]) -> Self:
        """Of several tables or shards together."""
        return cls(*map(sum, zip(*map(astuple, counts), strict=True)))


class TieredTable:
    """The interface and the results of `table`, an empty SparseTable, in at most `tiers.memory_bytes` of memory.

    Threads that share it wait for one another. `close` gives back the room on disk; rows do not outlive the table.
    A budget that holds too few rows is a ConfigError, a full disk a StorageError; the table is then as it was.
    """

    def __init__(self, table: SparseTable, tiers: Tiers) -> None:
        if any(
            limit is not None for limit in (table.eviction.max_age, table.eviction.min_uses, table.eviction.max_bytes)
        ):
            raise ConfigError(
                "a table with tiers keeps every row, on disk if not in memory: leave out tiers, or max_age, min_uses "
                "and max_bytes of the table's eviction"
            )
        self._hot = table
        self._lock = threading.Lock()
        self._memory_bytes = tiers.memory_bytes
        self._num_hits = self._num_promotions = self._num_demotions = 0
        num_words = table.dim + state_words(table.optimizer, table.dim)
        self._row_bytes = table.row_bytes
        self._cold = ColdStore(_HEADER_WORDS + num_words, tiers.folder, max(MAPPED_BYTES, tiers.memory_bytes))
        self._capacity(LEAST_ROWS)

    def __len__(self) -> int:
        return len(self._hot) + len(self._cold)

    @property
    def dim(self) -> int:
        return self._hot.dim

    @property
    def num_pushes(self) -> int:
        return self._hot.num_pushes

    @num_pushes.setter
    def num_pushes(self, value: int) -> None:
        self._hot.num_pushes = value

    @property
    def schedule(self) -> Schedule:
        return self._hot.schedule

    def counters(self) -> TableCounters:
        """What became of keys and rows; moving between tiers is no eviction."""
        return self._hot.counters()

    @property
    def num_bytes(self) -> int:
        """Memory in use: rows in memory, their index, and the index of the rows on disk."""
        return self._hot.num_bytes + self._cold.num_bytes

    @property
    def counts(self) -> TierCounts:
        return TierCounts(
            len(self._hot), len(self._cold), self.num_bytes, self._cold.disk_bytes,
            self._num_hits, self._num_promotions, self._num_demotions,
        )  # fmt: skip

    # --- as a SparseTable does ---------------------------------------------------------------------------------------

    def pull(
        self, keys: ArrayLike, out: NDArray[np.float32] | None = None, *, create: bool = True
    ) -> NDArray[np.float32]:
        """As SparseTable.pull. Without `create` rows on disk are read where they are: nothing moves."""
        keys = as_keys(keys)
        if out is None:
            out = np.empty((len(keys), self.dim), np.float32)
        with self._lock:
            if not create:
                self._hot.pull(keys, out, create=False)
                self._read_cold(keys, out)
                return out
            for part in self._parts(keys):
                self._hot.pull(keys[part], out[part])
        return out

    def push(self, keys: ArrayLike, grads: ArrayLike, *, samples: int | None = None) -> None:
        """As SparseTable.push."""
        keys = as_keys(keys)
        grads = self._as_grads(grads, len(keys))
        lookup = make_lookup(keys)
        summed = np.empty((len(lookup.unique), self.dim), np.float32)
        sum_rows(grads, lookup.sources, lookup.starts, 0, len(lookup.unique), summed)
        self.push_unique(lookup.unique, summed, samples=samples)

    def push_unique(self, keys: ArrayLike, grads: ArrayLike, *, samples: int | None = None) -> None:
        """As SparseTable.push_unique."""
        keys = as_keys(keys)
        grads = self._as_grads(grads, len(keys))
        with self._lock:
            before = self._hot.num_pushes
            for part in self._parts(keys):
                self._hot.num_pushes = before  # however many parts: one push
                self._hot.push_unique(keys[part], grads[part], samples=samples)
            self._hot.num_pushes = before + 1

    def known(self, keys: ArrayLike) -> NDArray[np.bool_]:
        """Which of `keys` have a row, in memory or on disk, [n]."""
        keys = as_keys(keys)
        with self._lock:
            return self._hot.known(keys) | (self._cold.find(keys) >= 0)

    def take(self, keys: ArrayLike) -> Rows:
        """Remove the rows of those `keys` that have one, and return them; their keys are unknown from then on."""
        keys = np.unique(as_keys(keys))
        with self._lock:
            hot = self._hot.take(keys)
            cold = keys[self._cold.find(keys) >= 0]
            return _joined([hot, self._unpack(cold, self._cold.take(cold))])

    def put(self, rows: Rows) -> None:
        """Insert rows whose keys are unknown, with their header. On an error the table stays as it is."""
        keys = as_keys(rows.keys)
        if self.known(keys).any():
            raise ValueError(f"some of {len(keys):,} rows to put have keys that are in the table: take those first")
        with self._lock:
            self._insert(rows)

    def export_rows(self) -> Rows:
        """A copy of every row: those in memory, then those on disk in the order of the file."""
        with self._lock:
            parts = [self._hot.export_rows()]
            parts += [self._unpack(keys, words) for keys, words in self._cold.parts(PART_ROWS)]
        return _joined(parts)

    def import_rows(self, rows: Rows, num_pushes: int) -> None:
        """Put `rows` into this empty table, the hottest into memory, and set how many pushes it has seen."""
        with self._lock:
            if len(self):
                raise ValueError(f"rows are loaded into an empty table; this one has {len(self):,} rows")
            self._hot.num_pushes, before = num_pushes, self._hot.num_pushes
            try:
                self._insert(rows)
            except BaseException:
                self._hot.num_pushes = before
                raise

    def step(self, max_rows: int = STEP_ROWS) -> int:
        """Bring down up to `max_rows` of the coldest rows while memory is nearly full; how many went. [5]

        For the time between batches: a few rows at each call, so that no batch has to wait for many.
        """
        with self._lock:
            if not len(self._cold):
                return 0  # all rows fit, and there is no index of others to keep
            capacity = self._capacity(len(self))
            num = min(max_rows, len(self._hot) - (capacity - capacity // 8))
            if num > 0:
                self._demote(self._hot.coldest(num, self.num_pushes))
            return max(num, 0)

    def close(self) -> None:
        """Give back the room on disk. Safe to call twice; the rows that were there are gone."""
        with self._lock:
            self._cold.close()

    # --- up and down -------------------------------------------------------------------------------------------------

    def _parts(self, keys: NDArray[np.uint64]) -> Iterator[slice]:
        """Parts of `keys` that memory can hold, each when its known rows are up and there is room for its new ones."""
        missing, cold = self._look_up(keys)
        num_rows = len(self) + len(missing) - len(cold)
        capacity = self._capacity(num_rows)
        if num_rows > capacity:
            self._cold.reserve(num_rows)
        size = capacity // 2
        for begin in range(0, len(keys), size):
            part = slice(begin, begin + size)
            if len(keys) > size:
                missing, cold = self._look_up(keys[part])
            self._bring_up(keys[part], missing, cold, capacity)
            yield part

    def _look_up(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The keys that are not in memory, each once, and those of them that are on disk. [1]"""
        unknown = keys[~self._hot.known(keys)]
        missing = np.unique(unknown) if len(unknown) else unknown
        return missing, missing[self._cold.find(missing) >= 0]

    def _bring_up(
        self, keys: NDArray[np.uint64], missing: NDArray[np.uint64], cold: NDArray[np.uint64], capacity: int
    ) -> None:
        """Room in memory for the rows of `keys`, and in it those that are on disk."""
        self._num_hits += len(keys) - len(missing)
        self._num_promotions += len(cold)
        num_over = len(self._hot) + len(missing) - capacity
        if num_over > 0:  # [2]
            self._demote(self._coldest_but(keys, num_over))
        if len(cold):  # [3]
            self._hot.put(self._unpack(cold, self._cold.take(cold)))

    def _coldest_but(self, keys: NDArray[np.uint64], num: int) -> NDArray[np.uint64]:
        """The coldest rows in memory, at least `num`, without those of `keys`, which are about to be used."""
        asked = num + min(STEP_ROWS, len(self._hot) // 16)  # some more, so that the next batches find room
        while True:
            coldest = self._hot.coldest(asked, self.num_pushes)
            chosen = coldest[~np.isin(coldest, keys)]
            if len(chosen) >= num:
                return chosen
            assert asked < len(self._hot), "a part is at most half of what memory holds"
            asked = min(2 * asked, len(self._hot))

    def _demote(self, keys: NDArray[np.uint64]) -> None:
        self._cold.reserve(len(self))  # before anything moves: a full disk must not catch rows on their way
        rows = self._hot.take(keys)
        self._cold.put(rows.keys, self._pack(rows))
        self._num_demotions += len(keys)

    def _insert(self, rows: Rows) -> None:
        """Rows of new keys: into memory as long as there is room, the others onto disk. On an error nothing changes."""
        if len({len(array) for array in rows}) > 1:
            raise ValueError(f"rows need as many of each part, got {[len(array) for array in rows]}")
        if (distinct := len(np.unique(rows.keys))) < len(rows.keys):
            raise ValueError(f"{len(rows.keys):,} rows hold only {distinct:,} distinct keys")
        capacity = self._capacity(len(self) + len(rows.keys))
        room = max(capacity - len(self._hot), 0)
        if len(rows.keys) <= room:
            self._hot.put(rows)
            return
        room = max(room - capacity // 8, 0)
        self._cold.reserve(len(self) + len(rows.keys))
        by_heat = np.argsort(
            -faded(rows.uses, rows.clock, self.num_pushes, make_fading(self._hot.eviction.half_life)), kind="stable"
        )
        self._hot.put(rows.select(by_heat[:room]))
        for begin in range(room, len(by_heat), PART_ROWS):
            part = rows.select(by_heat[begin : begin + PART_ROWS])
            self._cold.put(as_keys(part.keys), self._pack(part))

    def _read_cold(self, keys: NDArray[np.uint64], out: NDArray[np.float32]) -> None:
        """The values of those `keys` that are on disk, into their places of `out`."""
        slots = self._cold.find(keys)
        at = np.flatnonzero(slots >= 0)
        words = np.empty((len(at), self._cold.num_words), np.uint32)
        self._cold.read(slots[at], words)
        out[at] = words.view(np.float32)[:, _HEADER_WORDS : _HEADER_WORDS + self.dim]

    # --- rows on disk: [uses | clock | values | state], and how many fit in memory -----------------------------------

    def _pack(self, rows: Rows) -> NDArray[np.uint32]:
        words = np.empty((len(rows.keys), self._cold.num_words), np.uint32)
        numbers = words.view(np.float32)
        numbers[:, _USES], words[:, _CLOCK] = rows.uses, rows.clock
        numbers[:, _HEADER_WORDS : _HEADER_WORDS + self.dim] = rows.values
        numbers[:, _HEADER_WORDS + self.dim :] = rows.state
        return words

    def _unpack(self, keys: NDArray[np.uint64], words: NDArray[np.uint32]) -> Rows:
        numbers = words.view(np.float32)
        values = numbers[:, _HEADER_WORDS : _HEADER_WORDS + self.dim]
        state = numbers[:, _HEADER_WORDS + self.dim :]
        return Rows(keys, values.copy(), state.copy(), numbers[:, _USES].copy(), words[:, _CLOCK].copy())

    def _capacity(self, num_rows: int) -> int:
        """How many rows may be in memory when the table has `num_rows`: all of them, or as many as leave room for the
        index of all rows on disk.
        """
        if not len(self._cold):
            available = self._memory_bytes - self._cold.num_bytes
            if self._fitting(available) < num_rows and self._hot._store.is_growing:
                self._hot._store._move(ALL_MOVED)  # without the old index all rows may fit
            if (fitting := self._fitting(available)) >= num_rows:
                return fitting
        index_bytes = self._cold.index_bytes(num_rows)
        fitting = self._fitting(self._memory_bytes - index_bytes)
        if fitting < LEAST_ROWS:
            needed = index_bytes + 8 * self._index_size + LEAST_ROWS * self._row_bytes
            raise ConfigError(
                f"tiers.memory_bytes gives this table shard {self._memory_bytes:,} bytes; with {num_rows:,} rows it "
                f"needs at least {needed:,}: {LEAST_ROWS} rows and their index in memory, and the index of those on "
                "disk. Raise it, or use more servers."
            )
        return fitting

    def _fitting(self, num_bytes: int) -> int:
        """How many rows and their index fit in `num_bytes`.

        The index doubles when it is full, and is never smaller again. While it does, the old one is there still.
        """
        index_bytes = self._hot.num_bytes - len(self._hot) * self._row_bytes
        size, fitting = self._index_size, 0
        while num_bytes > index_bytes:
            full = int(MAX_LOAD * size) - kernels.BLOCK
            fitting = max(fitting, min(full, (num_bytes - index_bytes) // self._row_bytes))
            size *= 2
            index_bytes = 12 * size
        return fitting

    @property
    def _index_size(self) -> int:
        """Entries of the index in memory, without those of an old one."""
        entries = (self._hot.num_bytes - len(self._hot) * self._row_bytes) // 8
        return 1 << (int(entries).bit_length() - 1)

    def _as_grads(self, grads: ArrayLike, n: int) -> NDArray[np.float32]:
        array = np.ascontiguousarray(grads, np.float32)
        if array.shape != (n, self.dim):
            raise ValueError(
                f"{n} keys of a table with dim {self.dim} need gradients [{n}, {self.dim}], got {array.shape}"
            )
        return array


def _joined(parts: list[Rows]) -> Rows:
    return Rows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
