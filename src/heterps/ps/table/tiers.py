"""TieredTable: a table larger than its memory. Hot rows in a SparseTable, the rest in a ColdStore on disk.

    pull, push --keys--> [1] which are in memory?  --no--> [2] make room: the coldest rows go down
                              |                            [3] those on disk come up, in one batch
                              v                                  |
                         [4] the SparseTable does what it does <-+
    step, between batches: [5] some of the coldest rows go down, so that [2] mostly finds room

What goes down is what counts least by uses that fade with time (usage.py). A row moves with its state and header, bit
for bit, and every operation is done by the SparseTable on rows in memory: results do not depend on the budget. Eviction
goes over the rows of both tiers in one order (hand.py), and takes the same ones as without tiers.

Room on disk for every row of a table that is over its budget is taken before a batch changes anything. So only the
call that brings new keys can fail for want of room, it fails whole, and going down never does.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import chain
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heterps.arrays import KeyArray
from heterps.config import Tiers
from heterps.ps.keys.dedup import Positions, as_keys
from heterps.ps.table.budget import Budget
from heterps.ps.table.changes import Reader
from heterps.ps.table.cold import MAPPED_BYTES
from heterps.ps.table.cold_rows import ColdRows
from heterps.ps.table.eviction import SAMPLE, coldest
from heterps.ps.table.frozen import RowsInPlace
from heterps.ps.table.gradients import GradientTable
from heterps.ps.table.hand import Hand, Headers
from heterps.ps.table.metadata import TableMetadata, TableSizes
from heterps.ps.table.optimizers import state_words
from heterps.ps.table.rows import Rows
from heterps.ps.table.sparse import EVICT_STEP, SparseTable, evict_step
from heterps.ps.table.usage import faded, make_fading

STEP_ROWS = 1024


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
        """The share of known rows that pulls and pushes found in memory; None before the first."""
        num_used = self.num_hits + self.num_promotions
        return self.num_hits / num_used if num_used else None

    @classmethod
    def total(cls, counts: Iterable[Self]) -> Self:
        """Return the sums of several tables or shards."""
        return cls(*map(sum, zip(*map(astuple, counts), strict=True)))


class BothTiers(NamedTuple):
    """The rows of a table in memory and on disk, as eviction sees them: a place on disk is -1 - slot."""

    hot: SparseTable
    cold: ColdRows

    def __len__(self) -> int:
        return len(self.hot) + len(self.cold)

    @property
    def row_bytes(self) -> int:
        return self.hot.row_bytes

    def in_tags(self, low: int, high: int) -> Headers:
        above, below = self.hot.store.in_tags(low, high), self.cold.headers_in_tags(low, high)
        return Headers.join([above, below._replace(places=-1 - below.places)])

    def keys_at(self, places: NDArray[np.int64]) -> KeyArray:
        keys, below = np.empty(len(places), np.uint64), places < 0
        keys[~below] = self.hot.store.keys_at(places[~below])
        keys[below] = self.cold.keys_at(-1 - places[below])
        return keys

    def drop(self, keys: KeyArray) -> None:
        known = self.hot.known(keys)
        self.hot.take(keys[known])
        self.cold.drop(keys[~known])


class TieredTable(GradientTable):
    """The interface and the results of `table`, an empty SparseTable, in at most `tiers.memory_bytes` of memory.

    Threads that share it wait for one another. `close` gives back the room on disk; rows do not outlive the table.
    A budget that holds too few rows is a ConfigError, a full disk a StorageError; the table is then as it was.
    """

    def __init__(self, table: SparseTable, tiers: Tiers) -> None:
        policy = table.eviction
        evicts = any(limit is not None for limit in (policy.max_age, policy.min_uses, policy.max_bytes))
        self._hot = table
        self.dim, self.widths, self.schedule = table.dim, table.widths, table.schedule
        # What is the same wherever rows are; moving between tiers is no eviction.
        self.counters, self.evictions = table.counters, table.evictions
        self.changes = table.changes
        self.check_metadata, self.export_metadata = table.check_metadata, table.export_metadata
        self.resume = table.resume
        self._cold = ColdRows(
            table.dim,
            state_words(table.optimizer, table.dim),
            tiers.folder,
            max(MAPPED_BYTES, tiers.memory_bytes),
            keep_headers=evicts,
        )
        self._both = BothTiers(self._hot, self._cold)
        self._budget = Budget(tiers.memory_bytes, self._hot, self._cold)
        self._glance = Hand()  # where `coldest` goes on
        self._lock = threading.Lock()
        self._num_hits = self._num_promotions = self._num_demotions = 0
        self._num_changes = 0  # calls that may have changed or moved a row

    def __len__(self) -> int:
        return len(self._both)

    @property
    def num_pushes(self) -> int:
        return self._hot.num_pushes

    @num_pushes.setter
    def num_pushes(self, value: int) -> None:
        self._hot.num_pushes = value

    @property
    def rate(self) -> float:
        return self._hot.rate

    @rate.setter
    def rate(self, value: float) -> None:
        self._hot.rate = value

    # --- what there is, and what became of it ------------------------------------------------------------------------

    @property
    def num_bytes(self) -> int:
        """Memory in use: rows in memory, their index, and the index of the rows on disk."""
        return self._hot.num_bytes + self._cold.num_bytes

    def sizes(self) -> TableSizes:
        """Return how many rows and bytes are where."""
        return TableSizes(len(self._hot), len(self._cold), self.num_bytes, self._cold.disk_bytes)

    @property
    def free_bytes(self) -> int | None:
        """Bytes that are free where rows on disk are; None where the folder is gone."""
        try:
            return shutil.disk_usage(self._cold.folder).free
        except OSError:
            return None

    @property
    def counts(self) -> TierCounts:
        return TierCounts(*self.sizes(), self._num_hits, self._num_promotions, self._num_demotions)

    # --- as a SparseTable does ---------------------------------------------------------------------------------------

    def pull(
        self, keys: ArrayLike, out: NDArray[np.float32] | None = None, *, create: bool = True
    ) -> NDArray[np.float32]:
        """Do as SparseTable.pull. Without `create` rows on disk are read where they are: nothing moves."""
        keys = as_keys(keys)
        if out is None:
            out = np.empty((len(keys), self.dim), np.float32)
        with self._lock:
            if not create:
                self._hot.pull(keys, out, create=False)
                self._cold.read_values(keys, out)
                return out
            for part in self._parts(keys):
                self._hot.pull(keys[part], out[part])
        return out

    def push_sums(
        self, keys: KeyArray, grads: ArrayLike, sources: Positions, starts: Positions, *, samples: int | None = None
    ) -> None:
        """Do as SparseTable.push_sums."""
        grads = self._as_grads(grads, len(sources))
        self._push(
            keys,
            lambda part: self._hot.push_sums(
                keys[part], grads, sources, starts[part.start : part.stop + 1], samples=samples, evict=False
            ),
        )

    def push_unique(self, keys: ArrayLike, grads: ArrayLike, *, samples: int | None = None) -> None:
        """Do as SparseTable.push_unique."""
        keys = as_keys(keys)
        grads = self._as_grads(grads, len(keys))
        self._push(keys, lambda part: self._hot.push_unique(keys[part], grads[part], samples=samples, evict=False))

    def known(self, keys: ArrayLike) -> NDArray[np.bool_]:
        """Return which of `keys` have a row, in memory or on disk, [n]."""
        keys = as_keys(keys)
        with self._lock:
            return self._hot.known(keys) | self._cold.known(keys)

    def take(self, keys: ArrayLike) -> Rows:
        """Remove the rows of those `keys` that have one, and return them; their keys are unknown from then on."""
        keys = np.unique(as_keys(keys))
        with self._lock:
            self._num_changes += 1
            hot = self._hot.take(keys)
            return Rows.join([hot, self._cold.take_rows(keys[self._cold.known(keys)])])

    def put(self, rows: Rows) -> None:
        """Insert rows whose keys are unknown, with their header. On an error the table stays as it is."""
        keys = as_keys(rows.keys)
        if self.known(keys).any():
            raise ValueError(f"some of {len(keys):,} rows to put have keys that are in the table: take those first")
        with self._lock:
            self._insert(rows)

    def export_rows(self) -> Rows:
        """Return a copy of every row: those in memory, then those on disk in the order of the file."""
        return Rows.join(list(self.row_parts()()))

    def row_parts(self) -> Callable[[], Iterator[Rows]]:
        """Return a function that yields all rows as they are now, a part at a time.

        Once a row has changed or moved, the next part is a RuntimeError instead.
        """
        changes = self._num_changes
        return lambda: self._read_parts(changes)

    def freeze(self, reader: Reader | None = None) -> RowsInPlace:
        """Do as SparseTable.freeze, for the rows of both tiers; but these must be read before the table changes."""
        if reader is None:
            return RowsInPlace(len(self), self.row_parts()())
        with self._lock:
            hot = self._hot.freeze(reader)
            lowered = self.changes[reader].lowered
            lowered = lowered[self._cold.known(lowered)]
            firsts = range(0, len(lowered), size := self._cold.part_rows)
            cold = (self._cold.read_rows(lowered[at : at + size]) for at in firsts)
            return RowsInPlace(len(hot) + len(lowered), chain(hot.parts(), cold))

    def import_rows(self, rows: Rows, num_pushes: int, metadata: TableMetadata | None = None) -> None:
        """Do as SparseTable.import_rows, with the hottest rows in memory."""
        with self._lock:
            if len(self):
                raise ValueError(f"rows are loaded into an empty table; this one has {len(self):,} rows")
            self._hot.check_metadata(metadata)
            self._hot.num_pushes, before = num_pushes, self._hot.num_pushes
            try:
                self._insert(rows)
            except BaseException:
                self._hot.num_pushes = before
                raise
            self._hot.resume(num_pushes, metadata)

    def coldest(self, num: int, clock: int) -> KeyArray:
        """Do as SparseTable.coldest, for the rows of both tiers."""
        with self._lock:
            seen = self._glance.advance(self._both, SAMPLE * num)
            policy = self._hot.eviction
            found = coldest(seen, min(num, len(self)), clock, policy.order, make_fading(policy.half_life))
            return self._both.keys_at(found.places[:num])

    def evict(self, step: int = EVICT_STEP) -> int:
        """Do as SparseTable.evict."""
        with self._lock:
            self._num_changes += 1
            return self._hot.evictor.evict(self._both, step, self.num_pushes)

    def step(self, max_rows: int = STEP_ROWS) -> int:
        """Bring down up to `max_rows` of the coldest rows while memory is nearly full; how many went. [5]

        For the time between batches: a few rows at each call, so that no batch has to wait for many.
        """
        with self._lock:
            if not len(self._cold):
                return 0  # all rows fit, and there is no index of others to keep
            capacity = self._budget.capacity(len(self))
            num = min(max_rows, len(self._hot) - (capacity - capacity // 8))
            if num > 0:
                self._num_changes += 1
                self._demote(self._hot.coldest(num, self.num_pushes))
            return max(num, 0)

    def close(self) -> None:
        """Give back the room on disk. Safe to call twice; the rows that were there are gone."""
        with self._lock:
            self._num_changes += 1
            self._cold.close()

    # --- up and down -------------------------------------------------------------------------------------------------

    def _push(self, keys: KeyArray, work: Callable[[slice], None]) -> None:
        with self._lock:
            before = self._hot.num_pushes
            for part in self._parts(keys):
                self._hot.num_pushes = before  # however many parts: one push
                work(part)
            self._hot.num_pushes = before + 1
            self._hot.evictor.evict(self._both, evict_step(len(keys)), before + 1)

    def _parts(self, keys: KeyArray) -> Iterator[slice]:
        """Yield parts of `keys` that memory can hold, each when its known rows are up and its new ones have room."""
        self._num_changes += 1
        missing, cold = self._look_up(keys)
        num_rows = len(self) + len(missing) - len(cold)
        capacity = self._budget.capacity(num_rows)
        if num_rows > capacity:
            self._cold.reserve(num_rows)
        size = capacity // 2
        for begin in range(0, len(keys), size):
            part = slice(begin, min(begin + size, len(keys)))
            if len(keys) > size:
                missing, cold = self._look_up(keys[part])
            self._bring_up(keys[part], missing, cold, capacity)
            yield part

    def _look_up(self, keys: KeyArray) -> tuple[KeyArray, KeyArray]:
        """Return the keys that are not in memory, each once, and those of them that are on disk. [1]"""
        unknown = keys[~self._hot.known(keys)]
        missing = np.unique(unknown) if len(unknown) else unknown
        return missing, missing[self._cold.known(missing)]

    def _bring_up(self, keys: KeyArray, missing: KeyArray, cold: KeyArray, capacity: int) -> None:
        """Make room in memory for the rows of `keys`, and bring up those that are on disk."""
        self._num_hits += len(keys) - len(missing)
        self._num_promotions += len(cold)
        num_over = len(self._hot) + len(missing) - capacity
        if num_over > 0:  # [2]
            self._demote(self._coldest_but(keys, num_over))
        if len(cold):  # [3]
            self._hot.put(self._cold.take_rows(cold))

    def _coldest_but(self, keys: KeyArray, num: int) -> KeyArray:
        """Return the coldest rows in memory, at least `num`, without those of `keys`, which are about to be used."""
        asked = num + min(STEP_ROWS, len(self._hot) // 16)  # some more, so that the next batches find room
        while True:
            coldest = self._hot.coldest(asked, self.num_pushes)
            chosen = coldest[~np.isin(coldest, keys)]
            if len(chosen) >= num:
                return chosen
            assert asked < len(self._hot), "a part is at most half of what memory holds"
            asked = min(2 * asked, len(self._hot))

    def _demote(self, keys: KeyArray) -> None:
        self._cold.reserve(len(self))  # before anything moves: a full disk must not catch rows on their way
        rows = self._hot.take(keys)
        self.changes.went_down(rows.keys, rows.clock, self.num_pushes)
        self._cold.put_rows(rows)
        self._num_demotions += len(keys)

    def _insert(self, rows: Rows) -> None:
        """Put rows of new keys into memory while there is room, the others onto disk. On an error nothing changes."""
        self._hot.check_rows(rows)
        self._num_changes += 1
        capacity = self._budget.capacity(len(self) + len(rows.keys))
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
        for begin in range(room, len(by_heat), self._cold.part_rows):
            part = rows.select(by_heat[begin : begin + self._cold.part_rows])
            self._cold.put_rows(part._replace(keys=as_keys(part.keys)))

    def _read_parts(self, changes: int) -> Iterator[Rows]:
        """Yield all rows, as long as there were no more than these `changes`."""
        size = self._cold.part_rows
        hot = (self._hot.export_rows(slice(at, at + size)) for at in range(0, max(len(self._hot), 1), size))
        for parts in (hot, self._cold.row_parts()):
            while True:
                with self._lock:
                    if self._num_changes != changes:
                        raise RuntimeError("a table with tiers has changed since its rows were asked for")
                    part = next(parts, None)
                if part is None:
                    break
                yield part
