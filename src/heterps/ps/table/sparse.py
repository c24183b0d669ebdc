"""SparseTable: 64-bit keys to rows of float32, with the optimizer on the table. No vocabulary size to declare."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heterps.config import Adagrad, Optimizer
from heterps.hashing import mix64
from heterps.ps.dedup import as_keys, make_lookup, sum_rows
from heterps.ps.table import kernels
from heterps.ps.table.memory import reserve
from heterps.ps.table.optimizers import coefficients, initial_state, kind_of, state_words
from heterps.ps.table.usage import faded, make_fading

MAX_LOAD = 0.7
LEAST_INDEX = 1024
MAX_ROWS = 2**31
SAMPLE = 8  # rows looked at for each that is asked of `coldest`


class Rows(NamedTuple):
    """Rows of a table by key: what a checkpoint keeps of it, and what moves between tables."""

    keys: NDArray[np.uint64]  # [n]
    values: NDArray[np.float32]  # [n, dim]
    state: NDArray[np.float32]  # [n, words of optimizer state]
    uses: NDArray[np.float32]  # [n], at `clock`; see usage.py
    clock: NDArray[np.uint32]  # [n], of the last use

    def select(self, which: NDArray[Any]) -> Rows:
        """The rows at these positions, or where this mask is true."""
        return Rows(*(array[which] for array in self))


class SparseTable:
    """A hash table from 64-bit keys to rows of `dim` float32 values, which follow gradients by `optimizer`.

    Every 64-bit value is a valid key. A key that is not there yet gets a row whose values are a pure function of
    (seed, key), uniform in [-init_scale, init_scale). The table grows from empty. Threads that share a table
    wait for one another; the kernels release the GIL, so several tables work in parallel on several threads.
    """

    def __init__(
        self, dim: int, optimizer: Optimizer = Adagrad(lr=0.05), seed: int = 0, init_scale: float = 0.01
    ) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be at least 0 and less than 2**64, got {seed}")
        self.dim = dim
        self.optimizer = optimizer
        self.seed = seed
        self.init_scale = init_scale
        self.num_pushes = 0  # counts for Adam's bias correction, as torch's SparseAdam counts steps
        self._stride = -(-(kernels.HEADER_WORDS + dim + state_words(optimizer, dim)) // 2) * 2
        self._fading = make_fading()
        self._glance = 0  # where `coldest` begins to look
        self._lock = threading.Lock()
        self._count = np.zeros(1, np.int64)
        self._index = np.zeros(LEAST_INDEX, np.uint64)
        self._memory = reserve(LEAST_INDEX * self._stride * 4)
        self._bind()

    def __len__(self) -> int:
        return int(self._count[0])

    @property
    def num_bytes(self) -> int:
        """Memory in use: rows and index."""
        return len(self) * self._stride * 4 + self._index.nbytes

    def pull(
        self, keys: ArrayLike, out: NDArray[np.float32] | None = None, *, create: bool = True
    ) -> NDArray[np.float32]:
        """Values of `keys` (int64 or uint64, [n]) as float32 [n, dim], into `out` if given.

        Unknown keys are created; without `create` their initial values are returned and the table stays as it is.
        """
        keys = as_keys(keys)
        if out is None:
            out = np.empty((len(keys), self.dim), np.float32)
        elif out.shape != (len(keys), self.dim) or out.dtype != np.float32:
            raise ValueError(f"out must be float32 {[len(keys), self.dim]}, got {out.dtype} {list(out.shape)}")
        with self._lock:
            if not create:
                kernels.peek(self._body, keys, out)
                return out
            done = 0
            while (done := kernels.pull(self._body, self._limit, self._now, keys, done, out)) < len(keys):
                self._grow(kernels.BLOCK)
        return out

    def push(self, keys: ArrayLike, grads: ArrayLike) -> None:
        """Gradients `grads` [n, dim] of `keys` [n]: those of one key are summed, then each key makes one step."""
        keys = as_keys(keys)
        grads = self._as_grads(grads, len(keys))
        lookup = make_lookup(keys)
        if len(lookup.unique) < len(keys):
            summed = np.empty((len(lookup.unique), self.dim), np.float32)
            sum_rows(grads, lookup.sources, lookup.starts, 0, len(lookup.unique), summed)
            keys, grads = lookup.unique, summed
        self.push_unique(keys, grads)

    def push_unique(self, keys: ArrayLike, grads: ArrayLike) -> None:
        """As `push`, for keys that the caller knows to differ: a client has summed duplicates already."""
        keys = as_keys(keys)
        grads = self._as_grads(grads, len(keys))
        with self._lock:
            self.num_pushes += 1
            numbers = coefficients(self.optimizer, self.num_pushes, sparse=True)
            done, kind = 0, kind_of(self.optimizer)
            while (done := kernels.push(self._body, self._limit, self._now, keys, done, grads, kind, numbers)) < len(
                keys
            ):
                self._grow(kernels.BLOCK)

    def known(self, keys: ArrayLike) -> NDArray[np.bool_]:
        """Which of `keys` have a row, [n]."""
        keys = as_keys(keys)
        out = np.empty(len(keys), np.bool_)
        with self._lock:
            kernels.known(self._body, keys, out)
        return out

    def take(self, keys: ArrayLike) -> Rows:
        """Remove the rows of those `keys` that have one, and return them; their keys are unknown from then on."""
        keys = as_keys(keys)
        out = np.empty((len(keys), self._stride // 2), np.uint64)
        with self._lock:
            num_taken = kernels.take(self._body, keys, out)
        return self._as_rows(out[:num_taken].view(np.float32))

    def put(self, rows: Rows) -> None:
        """Insert rows whose keys are unknown, with their header. On an error the table stays as it is."""
        keys = self._check_rows(rows)
        with self._lock:
            known = np.empty(len(keys), np.bool_)
            kernels.known(self._body, keys, known)
            if known.any():
                raise ValueError(
                    f"{known.sum():,} of {len(keys):,} rows to put have keys that are in the table, "
                    f"the first is {keys[known][0]}: take those first"
                )
            self._load(keys, rows)

    def coldest(self, num: int, clock: int) -> NDArray[np.uint64]:
        """Keys of the `num` rows (or all, where there are fewer) whose uses, faded up to `clock`, count least.

        They are the coldest of SAMPLE times as many rows, spread over the table, and of others with each call.
        """
        with self._lock:
            num_rows = len(self)
            num = min(num, num_rows)
            num_seen = min(SAMPLE * num, num_rows)
            seen = np.arange(num_seen) * num_rows // max(num_seen, 1)
            seen = (seen + self._glance) % max(num_rows, 1)
            self._glance += 1
            words = self._words()
            clocks = words.view(np.uint32)[seen, kernels.CLOCK]
            count = faded(words[seen, kernels.USES], clocks, clock, self._fading)
            chosen = np.argpartition(count, num - 1)[:num] if num else np.empty(0, np.int64)
            keys: NDArray[np.uint64] = words.view(np.uint64)[seen[chosen], 0]
            return keys

    def export_rows(self) -> Rows:
        """A copy of every row. As long as none was removed, the oldest comes first."""
        with self._lock:
            return self._as_rows(self._words())

    def import_rows(self, rows: Rows, num_pushes: int) -> None:
        """Put `rows` into this empty table, and set how many pushes it has seen. On an error it stays empty."""
        keys = self._check_rows(rows)
        with self._lock:
            if len(self):
                raise ValueError(f"rows are loaded into an empty table; this one has {len(self):,} rows")
            self._load(keys, rows)
            self.num_pushes = num_pushes

    @property
    def _now(self) -> int:
        """The table's clock, as rows note it."""
        return self.num_pushes % 2**32

    def _words(self) -> NDArray[np.float32]:
        """All rows, [n, stride]: a view."""
        return self._body.words[: len(self) * self._stride].reshape(-1, self._stride)

    def _as_rows(self, words: NDArray[np.float32]) -> Rows:
        """Copies of the parts of whole rows."""
        values = slice(kernels.HEADER_WORDS, kernels.HEADER_WORDS + self.dim)
        state = slice(values.stop, values.stop + state_words(self.optimizer, self.dim))
        return Rows(
            words.view(np.uint64)[:, 0].copy(),
            words[:, values].copy(),
            words[:, state].copy(),
            words[:, kernels.USES].copy(),
            words.view(np.uint32)[:, kernels.CLOCK].copy(),
        )

    def _check_rows(self, rows: Rows) -> NDArray[np.uint64]:
        """The keys of rows that fit this table and all differ."""
        keys = as_keys(rows.keys)
        expected = (len(keys), self.dim), (len(keys), state_words(self.optimizer, self.dim))
        if (rows.values.shape, rows.state.shape) != expected:
            raise ValueError(
                f"{len(keys):,} rows of dim {self.dim} with {self.optimizer.kind} need values {list(expected[0])} and "
                f"state {list(expected[1])}, got {list(rows.values.shape)} and {list(rows.state.shape)}"
            )
        if not len(rows.uses) == len(rows.clock) == len(keys):
            raise ValueError(
                f"{len(keys):,} rows need as many uses and clocks, got {len(rows.uses):,} and {len(rows.clock):,}"
            )
        if (distinct := len(make_lookup(keys).unique)) < len(keys):
            raise ValueError(f"{len(keys):,} rows hold only {distinct:,} distinct keys")
        return keys

    def _load(self, keys: NDArray[np.uint64], rows: Rows) -> None:
        self._grow(len(keys))
        kernels.load(self._body, keys, rows.values, rows.state, rows.uses, rows.clock)

    def _grow(self, extra: int) -> None:
        """Make room for `extra` more rows. Where the system refuses the memory, the table stays as it is."""
        used, needed = len(self) * self._stride * 4, (len(self) + extra) * self._stride * 4
        if len(self) + extra > MAX_ROWS:
            raise MemoryError(f"a table shard holds at most {MAX_ROWS:,} rows; use more shards")
        size = len(self._index)
        while len(self) + extra > MAX_LOAD * size:
            size *= 2
        index, memory = self._index, self._memory
        if size > len(index):
            index = np.zeros(size, np.uint64)
            kernels.rehash(self._index, index)
        if needed > len(memory):
            memory = reserve(needed)
            memory[:used] = self._memory[:used]
        self._index, self._memory = index, memory
        self._bind()

    def _bind(self) -> None:
        whole = len(self._memory) // (self._stride * 4) * self._stride * 4
        # Mixed, so that tables of different seeds have no rows in common: key ^ seed alone is the key of other rows.
        seed = np.uint64(mix64(np.uint64(self.seed) ^ kernels.GOLDEN))
        self._body = kernels.Body(
            self._index, self._memory[:whole].view(np.float32), self._memory[:whole].view(np.uint64),
            self._memory[:whole].view(np.uint32), self._count,
            self._stride, self.dim, seed, self.init_scale, initial_state(self.optimizer), *self._fading,
        )  # fmt: skip
        self._limit = min(int(MAX_LOAD * len(self._index)), whole // (self._stride * 4), MAX_ROWS)

    def _as_grads(self, grads: ArrayLike, n: int) -> NDArray[np.float32]:
        array = np.ascontiguousarray(grads, np.float32)
        if array.shape != (n, self.dim):
            raise ValueError(
                f"{n} keys of a table with dim {self.dim} need gradients [{n}, {self.dim}], got {array.shape}"
            )
        return array
