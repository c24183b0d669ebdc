"""SparseTable: 64-bit keys to rows of float32, with the optimizer on the table. No vocabulary size to declare."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heterps.config import Adagrad, Optimizer
from heterps.ps.dedup import make_lookup, sum_rows
from heterps.ps.table import kernels
from heterps.ps.table.memory import reserve
from heterps.ps.table.optimizers import coefficients, initial_state, kind_of, state_words

MAX_LOAD = 0.7
LEAST_INDEX = 1024
MAX_ROWS = 2**31


class Rows(NamedTuple):
    """Rows of a table by key: what a checkpoint keeps of it."""

    keys: NDArray[np.uint64]  # [n]
    values: NDArray[np.float32]  # [n, dim]
    state: NDArray[np.float32]  # [n, words of optimizer state]


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
        self.dim = dim
        self.optimizer = optimizer
        self.seed = seed
        self.init_scale = init_scale
        self.num_pushes = 0  # counts for Adam's bias correction, as torch's SparseAdam counts steps
        self._stride = -(-(kernels.KEY_WORDS + dim + state_words(optimizer, dim)) // 2) * 2
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
        with self._lock:
            if not create:
                kernels.peek(self._body, keys, out)
                return out
            done = 0
            while (done := kernels.pull(self._body, self._limit, keys, done, out)) < len(keys):
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

    def push_unique(self, keys: NDArray[np.uint64], grads: NDArray[np.float32]) -> None:
        """As `push`, for keys that the caller knows to differ: a client has summed duplicates already."""
        with self._lock:
            self.num_pushes += 1
            numbers = coefficients(self.optimizer, self.num_pushes, sparse=True)
            done, kind = 0, kind_of(self.optimizer)
            while (done := kernels.push(self._body, self._limit, keys, done, grads, kind, numbers)) < len(keys):
                self._grow(kernels.BLOCK)

    def export_rows(self) -> Rows:
        """A copy of every row, in the order of creation."""
        n, first = len(self), kernels.KEY_WORDS
        words = self._body.words[: n * self._stride].reshape(n, self._stride)
        last = first + self.dim
        end = last + state_words(self.optimizer, self.dim)
        keys = self._body.pairs[: n * self._stride // 2].reshape(n, -1)[:, 0].copy()
        return Rows(keys, words[:, first:last].copy(), words[:, last:end].copy())

    def import_rows(self, rows: Rows, num_pushes: int) -> None:
        """Put `rows` into this empty table, and set how many pushes it has seen."""
        if len(self):
            raise ValueError(f"rows are loaded into an empty table; this one has {len(self):,} rows")
        width = state_words(self.optimizer, self.dim)
        if rows.values.shape[1:] != (self.dim,) or rows.state.shape[1:] != (width,):
            raise ValueError(
                f"rows have {rows.values.shape[1]} values and {rows.state.shape[1]} words of state; "
                f"this table has {self.dim} and {width} ({self.optimizer.kind})"
            )
        self._grow(len(rows.keys))
        self.pull(rows.keys)
        if len(self) != len(rows.keys):
            raise ValueError(f"{len(rows.keys):,} rows hold only {len(self):,} distinct keys")
        words = self._body.words[: len(self) * self._stride].reshape(len(self), self._stride)
        first, last = kernels.KEY_WORDS, kernels.KEY_WORDS + self.dim
        words[:, first:last] = rows.values
        words[:, last : last + width] = rows.state
        self.num_pushes = num_pushes

    def _grow(self, extra: int) -> None:
        """Make room for `extra` more rows."""
        needed = len(self) + extra
        if needed > MAX_ROWS:
            raise MemoryError(f"a table shard holds at most {MAX_ROWS:,} rows; use more shards")
        while needed > MAX_LOAD * len(self._index):
            larger = np.zeros(2 * len(self._index), np.uint64)
            kernels.rehash(self._index, larger)
            self._index = larger
        if needed * self._stride * 4 > len(self._memory):
            used = len(self) * self._stride * 4
            larger_memory = reserve(max(2 * used, needed * self._stride * 4))
            larger_memory[:used] = self._memory[:used]
            self._memory = larger_memory
        self._bind()

    def _bind(self) -> None:
        whole = len(self._memory) // (self._stride * 4) * self._stride * 4
        self._body = kernels.Body(
            self._index, self._memory[:whole].view(np.float32), self._memory[:whole].view(np.uint64), self._count,
            self._stride, self.dim, np.uint64(self.seed), self.init_scale, initial_state(self.optimizer),
        )  # fmt: skip
        self._limit = min(int(MAX_LOAD * len(self._index)), whole // (self._stride * 4))

    def _as_grads(self, grads: ArrayLike, n: int) -> NDArray[np.float32]:
        array = np.ascontiguousarray(grads, np.float32)
        if array.shape != (n, self.dim):
            raise ValueError(
                f"{n} keys of a table with dim {self.dim} need gradients [{n}, {self.dim}], got {array.shape}"
            )
        return array


def as_keys(keys: ArrayLike) -> NDArray[np.uint64]:
    """Keys as a flat array of uint64; int64 keys keep their bits, so that every 64-bit value is valid in both types."""
    array = np.asarray(keys)
    if array.dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
        if array.size or array.dtype.kind not in "iuf":
            raise TypeError(f"keys must be int64 or uint64, got {array.dtype}")
        array = array.astype(np.uint64)
    if array.ndim != 1:
        raise ValueError(f"keys must have one dimension, got shape {array.shape}")
    return np.ascontiguousarray(array).view(np.uint64)
