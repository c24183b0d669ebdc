"""SparseTable: 64-bit keys to rows of float32, with the optimizer on the table. No vocabulary size to declare."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heterps.arrays import FloatArray, KeyArray
from heterps.config import (
    Adagrad,
    Admission,
    Always,
    ConstantRate,
    Eviction,
    Initializer,
    Optimizer,
    Schedule,
    Uniform,
    check_optimizer,
)
from heterps.errors import ArgumentError
from heterps.ps.keys.dedup import Positions, as_keys, make_lookup
from heterps.ps.table import kernels
from heterps.ps.table.admission import Gate
from heterps.ps.table.changes import ChangeLogs, Reader
from heterps.ps.table.eviction import SAMPLE, Evictor, coldest
from heterps.ps.table.frozen import FrozenRows
from heterps.ps.table.gradients import GradientTable
from heterps.ps.table.metadata import TableCounters, TableMetadata, TableSizes
from heterps.ps.table.optimizers import coefficients, kind_of, state_words
from heterps.ps.table.rows import Rows, check_widths
from heterps.ps.table.schedules import rate_at
from heterps.ps.table.store import RowStore
from heterps.ps.table.usage import make_fading

Which = NDArray[np.bool_] | slice
KernelStep = Callable[[kernels.TableBody, int, int, int], int]

EVICT_STEP = 256  # rows that the hand of eviction passes with a push, at least


def evict_step(num_keys: int) -> int:
    """Return how many rows the hand of eviction passes with a push of `num_keys` different keys."""
    return max(EVICT_STEP, 2 * num_keys)


class SparseTable(GradientTable):
    """A hash table from 64-bit keys to rows of `dim` float32 values, which follow gradients by `optimizer`.

    Every 64-bit value is a valid key. A key that is not there yet gets a row, if `admission` lets it, whose values are
    a pure function of (seed, key): by `init`, or uniform in [-init_scale, init_scale). The table grows from empty, and
    rows go by `eviction`. The clock of a table is its count of pushes. Threads that share a table wait for one another;
    the kernels release the GIL, so several tables work in parallel on several threads.
    """

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer = Adagrad(lr=0.05),
        seed: int = 0,
        init_scale: float = 0.01,
        *,
        init: Initializer | None = None,
        schedule: Schedule = ConstantRate(),
        admission: Admission = Always(),
        eviction: Eviction = Eviction(),
    ) -> None:
        check_optimizer(optimizer)
        if dim < 1:
            raise ArgumentError(f"dim must be at least 1, got {dim}")
        if not 0 <= seed < 2**64:
            raise ArgumentError(f"seed must be at least 0 and less than 2**64, got {seed}")
        self.dim = dim
        self.optimizer = optimizer
        self.schedule = schedule
        self.rate = 1.0  # what the learning rate is multiplied by, beside the schedule
        self.seed = seed
        self.eviction = eviction
        self.num_pushes = 0  # counts for Adam's bias correction, as torch's SparseAdam counts steps
        self._fading = make_fading(eviction.half_life)
        self.store = RowStore(dim, optimizer, seed, init or Uniform(scale=init_scale), self._fading)
        self._gate = None if isinstance(admission, Always) else Gate(admission, seed)
        self.changes = ChangeLogs()
        self.evictor = Evictor(eviction, self._fading, self.changes)
        self._num_admitted = 0
        self._glance = 0  # where `coldest` begins to look
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.store)

    @property
    def num_bytes(self) -> int:
        """Memory in use: rows and index."""
        return self.store.num_bytes

    @property
    def widths(self) -> tuple[int, int]:
        """The numbers of values and of words of optimizer state of a row."""
        return self.dim, state_words(self.optimizer, self.dim)

    @property
    def row_bytes(self) -> int:
        """Memory of one row, without its place in the index."""
        return self.store.row_bytes

    # --- pull and push -----------------------------------------------------------------------------------------------

    def pull(self, keys: ArrayLike, out: FloatArray | None = None, *, create: bool = True) -> FloatArray:
        """Return values of `keys` (int64 or uint64, [n]) as float32 [n, dim], into `out` if given.

        Unknown keys are created. Without `create`, and in a table that does not admit every key or has a byte ceiling,
        which only pushes see to, their initial values are returned and the table stays as it is.
        """
        keys = as_keys(keys)
        if out is None:
            out = np.empty((len(keys), self.dim), np.float32)
        elif out.shape != (len(keys), self.dim) or out.dtype != np.float32:
            raise ArgumentError(f"out must be float32 {[len(keys), self.dim]}, got {out.dtype} {list(out.shape)}")
        with self._lock:
            if not create or self._gate is not None or self.eviction.max_bytes is not None:
                kernels.peek(self.store.body, keys, out)
                return out
            before, now = len(self), self._now
            self.store.in_steps(
                len(keys),
                lambda body, limit, start, stop: kernels.pull(body, limit, now, keys, start, stop, out),
            )
            self._num_admitted += len(self) - before
        return out

    def push_sums(
        self,
        keys: KeyArray,
        grads: ArrayLike,
        sources: Positions,
        starts: Positions,
        *,
        samples: int | None = None,
        evict: bool = True,
    ) -> None:
        """Push by a lookup that is there already: `keys` all differ, and the gradients of `keys[u]` are the rows
        `sources[starts[u]:starts[u + 1]]` of `grads`. Each sum is made and used in one pass.

        Unless it is told to `evict`, rows that should go stay: for a caller that sees to it.
        """
        grads = self._as_grads(grads, len(sources))

        def step(keys: KeyArray, which: Which, now: int, numbers: FloatArray) -> KernelStep:
            begins, ends, kind = starts[:-1][which], starts[1:][which], kind_of(self.optimizer)
            return lambda body, limit, start, stop: kernels.push_sums(
                body, limit, now, keys, start, stop, grads, sources, begins, ends, kind, numbers
            )

        self._push(keys, step, samples, evict)

    def push_unique(self, keys: ArrayLike, grads: ArrayLike, *, samples: int | None = None, evict: bool = True) -> None:
        """Push gradients of keys that the caller knows to differ: a client has summed duplicates already."""
        keys = as_keys(keys)
        grads = self._as_grads(grads, len(keys))

        def step(keys: KeyArray, which: Which, now: int, numbers: FloatArray) -> KernelStep:
            mine, kind = grads[which], kind_of(self.optimizer)
            return lambda body, limit, start, stop: kernels.push(
                body, limit, now, keys, start, stop, mine, kind, numbers
            )

        self._push(keys, step, samples, evict)

    def _push(
        self,
        keys: KeyArray,
        step: Callable[[KeyArray, Which, int, FloatArray], KernelStep],
        samples: int | None,
        evict: bool,
    ) -> None:
        """Count a push, ask the gate, let `step` do the work for the keys that passed it, and let rows go."""
        factor = self.rate * rate_at(self.schedule, samples, self.num_pushes)
        with self._lock:
            for frozen in self.store.frozen:
                frozen.wait_for_reader()
            self.store.preserve(keys)
            self.num_pushes += 1
            passed: KeyArray = keys
            which: Which = slice(None)
            if self._gate is not None:
                which = self._gate.admit(keys, self._known(keys), self._now)
                passed = keys[which]
            numbers = coefficients(self.optimizer, self.num_pushes, factor, sparse=True)
            before = len(self)
            self.store.in_steps(len(passed), step(passed, which, self._now, numbers))
            self._num_admitted += len(self) - before
            if evict:
                self.evictor.evict(self.store, evict_step(len(keys)), self.num_pushes)

    # --- rows in and out ---------------------------------------------------------------------------------------------

    def known(self, keys: ArrayLike) -> NDArray[np.bool_]:
        """Return which of `keys` have a row, [n]."""
        with self._lock:
            return self._known(as_keys(keys))

    def newest(self, num: int) -> KeyArray:
        """Return the keys of the `num` rows that came last, as long as none was removed since."""
        with self._lock:
            return self.store.keys_at(np.arange(len(self) - num, len(self)))

    def take(self, keys: ArrayLike) -> Rows:
        """Remove the rows of those `keys` that have one, and return them; their keys are unknown from then on."""
        with self._lock:
            return self._as_rows(self.store.take(as_keys(keys)))

    def put(self, rows: Rows) -> None:
        """Insert rows whose keys are unknown, with their header. On an error of the rows the table stays as it is."""
        keys = self.check_rows(rows)
        with self._lock:
            known = self._known(keys)
            if known.any():
                raise ValueError(
                    f"{known.sum():,} of {len(keys):,} rows to put have keys that are in the table, "
                    f"the first is {keys[known][0]}: take those first"
                )
            self._load(keys, rows)

    def export_rows(self, part: slice = slice(None)) -> Rows:
        """Return a copy of every row, or of a part of them. As long as none was removed, the oldest comes first."""
        with self._lock:
            return self._as_rows(self.store.words()[part])

    def freeze(self, reader: Reader | None = None) -> FrozenRows:
        """Return the rows as they are now, whatever becomes of the table until they are read.

        With a `reader`, only those that may have changed since its last version.
        """
        with self._lock:
            due = np.ones(len(self), np.bool_)
            if reader is not None:
                clocks = self.store.words().view(np.uint32)[:, kernels.CLOCK]
                due = self.changes[reader].changed(clocks, self.num_pushes)
            frozen = FrozenRows(due, self.store.words, self._as_rows, self._lock)
            self.store.freeze(frozen)
            return frozen

    def import_rows(self, rows: Rows, num_pushes: int, metadata: TableMetadata | None = None) -> None:
        """Put `rows` into this empty table, and set how many pushes it has seen. On an error it stays empty.

        With the `metadata` that was exported beside the rows the table goes on exactly as that one would.
        """
        keys = self.check_rows(rows)
        with self._lock:
            if len(self):
                raise ValueError(f"rows are loaded into an empty table; this one has {len(self):,} rows")
            self.check_metadata(metadata)
            self._load(keys, rows)
        self.resume(num_pushes, metadata)

    def check_metadata(self, metadata: TableMetadata | None) -> None:
        """Raise ValueError where `resume` would refuse it."""
        if self._gate is not None and metadata is not None:
            self._gate.check_sketch(metadata.sketch)

    def resume(self, num_pushes: int, metadata: TableMetadata | None = None) -> None:
        """Set how many pushes the table has seen, and what it knows besides its rows."""
        self.check_metadata(metadata)
        with self._lock:
            self.num_pushes = num_pushes
            if metadata is None:
                return
            self.evictor.hand.at = metadata.hand
            self.evictor.log.counts = dict(metadata.counters.evicted)
            self._num_admitted = metadata.counters.admitted
            if self._gate is not None:
                self._gate.resume(metadata.sketch, metadata.sightings, metadata.counters.refused)

    def export_metadata(self) -> TableMetadata:
        """Return a copy of what the table knows besides its rows."""
        with self._lock:
            gate = self._gate
            sketch = np.zeros(0, np.uint8) if gate is None else gate.sketch
            return TableMetadata(self.evictor.hand.at, 0 if gate is None else gate.sightings, self._counters(), sketch)

    # --- cold rows ---------------------------------------------------------------------------------------------------

    def coldest(self, num: int, clock: int) -> KeyArray:
        """Find the keys of the `num` rows (or all, if fewer) that are the coldest at `clock`, by eviction's order.

        They are the coldest of SAMPLE times as many rows, spread over the table, and of others with each call.
        """
        with self._lock:
            num_rows = len(self)
            num = min(num, num_rows)
            if num < 1:
                return np.empty(0, np.uint64)
            num_seen = min(SAMPLE * num, num_rows)
            seen = (np.arange(num_seen) * num_rows // num_seen + self._glance) % num_rows
            self._glance += 1
            found = coldest(self.store.headers(seen), num, clock, self.eviction.order, self._fading)
            return self.store.keys_at(found.places[:num])

    def evict(self, step: int = EVICT_STEP) -> int:
        """Let the hand of eviction pass `step` rows; returns how many went. Every push does it for a few rows.

        At most `step` rows go because of the byte ceiling.
        """
        with self._lock:
            return self.evictor.evict(self.store, step, self.num_pushes)

    def evictions(self) -> NDArray[np.void]:
        """Return the last rows that eviction removed, the earliest first; fields key, reason, clock and uses."""
        with self._lock:
            return self.evictor.log.entries()

    # --- what there is, and what became of it ------------------------------------------------------------------------

    def sizes(self) -> TableSizes:
        """Return how many rows and bytes are where: all in memory."""
        return TableSizes(len(self), 0, self.num_bytes, 0)

    def counters(self) -> TableCounters:
        with self._lock:
            return self._counters()

    # --- with the lock held ------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        """The table's clock, as rows note it."""
        return self.num_pushes % 2**32

    def _known(self, keys: KeyArray) -> NDArray[np.bool_]:
        return self.store.find(keys) >= 0

    def _load(self, keys: KeyArray, rows: Rows) -> None:
        self.store.in_steps(
            len(keys),
            lambda body, limit, start, stop: kernels.load(
                body, limit, keys, start, stop, rows.values, rows.state, rows.uses, rows.clock
            ),
        )

    def _counters(self) -> TableCounters:
        refused = 0 if self._gate is None else self._gate.num_refused
        return TableCounters(self._num_admitted, refused, dict(self.evictor.log.counts))

    def _as_rows(self, words: FloatArray) -> Rows:
        """Return copies of the parts of whole rows."""
        values = slice(kernels.HEADER_WORDS, kernels.HEADER_WORDS + self.dim)
        state = slice(values.stop, values.stop + state_words(self.optimizer, self.dim))
        return Rows(
            words.view(np.uint64)[:, 0].copy(),
            words[:, values].copy(),
            words[:, state].copy(),
            words[:, kernels.USES].copy(),
            words.view(np.uint32)[:, kernels.CLOCK].copy(),
        )

    # --- arguments ---------------------------------------------------------------------------------------------------

    def check_rows(self, rows: Rows) -> KeyArray:
        """Return the keys of rows; ValueError where they do not fit this table, or do not all differ."""
        keys = as_keys(rows.keys)
        check_widths(rows, self.dim, self.optimizer)
        if not len(rows.uses) == len(rows.clock) == len(keys):
            raise ValueError(
                f"{len(keys):,} rows need as many uses and clocks, got {len(rows.uses):,} and {len(rows.clock):,}"
            )
        if (distinct := len(make_lookup(keys).unique)) < len(keys):
            raise ValueError(f"{len(keys):,} rows hold only {distinct:,} distinct keys")
        return keys
