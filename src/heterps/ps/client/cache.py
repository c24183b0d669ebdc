"""CachedClient: a worker's copies of hot rows, used again while they are within the staleness bound in force.

    pull --keys--> [cache] --those that are missing or too old--> client --rows--> [cache] --> rows of all keys
    push --------------------------------------------------------> client

Clock c of a worker is the number of iterations that it has pushed. A bound of s promises its iteration c every push of
every worker's iterations before c - s. A row that is pulled at clock c, `lead` iterations ahead of the slowest worker,
has every push before c - lead. It gets that number as its stamp, and is good as long as

    stamp >= clock - bound

The worker's own pushes are no exception: the servers apply them, and a copy shows them when it is pulled again, at most
`bound` iterations later. To apply them to the copy as well would take the optimizer's state, which is on the servers,
and to drop the copy would leave no cache: what a worker pulls in training is what it pushes.

A bound of 0 keeps no copies: every row comes from the servers as it is, and BSP stays exact.

Rows of a coming batch can be asked for ahead of use, as early as the bound allows: with 1 or more while this batch is
still computed, with 0 together with its pushes, in the same message to each server.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.ps.client.interface import RowClient
from heterps.ps.client.local import done
from heterps.ps.client.row_cache import RowCache
from heterps.ps.keys.dedup import Lookup
from heterps.ps.protocol.messages import Iteration, Round

MEMORY_BYTES = 64 << 20


@dataclass
class CacheCounts:
    """Rows that pulls asked for while the cache was on."""

    num_hits: int = 0
    num_misses: int = 0  # not there, or too old
    num_repeats: int = 0  # keys of a batch that were there before, and were not looked for again

    @property
    def hit_rate(self) -> float | None:
        """The share of hits; None before the first pull."""
        num_rows = self.num_hits + self.num_misses
        return self.num_hits / num_rows if num_rows else None


class _After(Future[FloatArray]):
    """A future whose result is made of another's. Waiting for it waits for the other, which is fetched then."""

    def __init__(self, other: Future[FloatArray]) -> None:
        super().__init__()
        self._other = other

    def result(self, timeout: float | None = None) -> FloatArray:
        self._other.exception(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._other.exception(timeout)
        return super().exception(timeout)


class AskedAhead:
    """Rows that were asked for ahead of use. A call gives them, or newer ones if they have become too old."""

    def __init__(self, client: CachedClient, table: str, lookup: Lookup, stamp: int, rows: Future[FloatArray]) -> None:
        self._client, self._table, self._lookup, self._stamp, self._rows = client, table, lookup, stamp, rows
        self._num_clears = client.num_clears

    def __call__(self) -> Future[FloatArray]:
        is_good = self._stamp >= self._client.oldest_good and self._num_clears == self._client.num_clears
        return self._rows if is_good else self._client.pull(self._table, self._lookup)


class CachedClient:
    """The rows of `client`, with up to `memory_bytes` of copies for each table. It is one worker's: call `tick` after
    each of its iterations. Who does not has iterations beside each other: rows asked for ahead are good until they are
    used. Futures may be answered on any thread.
    """

    def __init__(self, client: RowClient, bound: int, memory_bytes: int = MEMORY_BYTES) -> None:
        self._client = client
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._caches: dict[str, RowCache] = {}
        self._counts: dict[str, CacheCounts] = {}
        self._clock = self._lead = 0
        self.num_clears = 0
        self.bound = bound

    @property
    def bound(self) -> int:
        """The staleness bound in force, in iterations. A policy that changes it sets it here, before the next pull."""
        return self._bound

    @bound.setter
    def bound(self, bound: int) -> None:
        if bound < 0:
            raise ValueError(f"a staleness bound is at least 0, got {bound}")
        self._bound = bound

    @property
    def num_shards(self) -> int:
        return self._client.num_shards

    def rows_here(self, table: str) -> int | None:
        return self._client.rows_here(table)

    @property
    def num_bytes(self) -> int:
        """The bytes of memory of all copies."""
        with self._lock:
            return sum(cache.num_bytes for cache in self._caches.values())

    def counts(self, table: str | None = None) -> CacheCounts:
        """Hits and misses so far of a table, or of all."""
        with self._lock:
            chosen = self._counts.values() if table is None else [self._counts.get(table, CacheCounts())]
            return CacheCounts(
                sum(c.num_hits for c in chosen), sum(c.num_misses for c in chosen), sum(c.num_repeats for c in chosen)
            )

    def tick(self, lead: int = 0) -> None:
        """Note that an iteration is pushed; the next starts, `lead` iterations ahead of the slowest worker."""
        if lead < 0:
            raise ValueError(f"a worker is at least 0 iterations ahead of the slowest, got {lead}")
        with self._lock:
            self._clock += 1
            self._lead = lead

    def clear(self) -> None:
        """Forget every copy: the servers went back to a checkpoint, or rows were changed by other ways than pushes."""
        with self._lock:
            self._caches = {}  # another dict: what is on its way still goes into the old one
            self.num_clears += 1

    @property
    def oldest_good(self) -> int:
        """The least stamp with which rows may be used now."""
        with self._lock:
            return self._clock - self._bound

    def ask_ahead(self, table: str, lookup: Lookup, iterations: int = 0) -> AskedAhead | None:
        """Ask for rows that are used `iterations` from now; None where they would be too old by then."""
        with self._lock:
            oldest = self._clock + iterations - self._bound
            if iterations and self._clock - self._lead < oldest:
                return None  # what is used now is as new as it can be
        return AskedAhead(self, table, lookup, oldest, self._pull(table, lookup, oldest))

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        """Pull as the client does. Without `create`, as in an evaluation, every row comes from the servers."""
        if not create:
            return self._client.pull(table, lookup, create=False)
        return self._pull(table, lookup, self.oldest_good)

    def push(
        self, table: str, lookup: Lookup, grads: FloatArray, round: Round | Iteration | None = None
    ) -> Future[None]:
        return self._client.push(table, lookup, grads, round)

    def _pull(self, table: str, lookup: Lookup, oldest: int) -> Future[FloatArray]:
        """Pull rows with a stamp of at least `oldest`."""
        if self._bound == 0 or self._memory_bytes == 0:
            return self._client.pull(table, lookup)
        with self._lock:
            stamp = self._clock - self._lead  # now, and not when the answer comes: until then others push
            caches = self._caches
            cache = caches.get(table)
            if cache is None:
                rows, hits = None, np.zeros(len(lookup.unique), np.bool_)
            else:
                rows = np.empty((len(lookup.unique), cache.dim), np.float32)
                hits = cache.get(lookup.unique, oldest, rows)
            counts = self._counts.setdefault(table, CacheCounts())
            counts.num_hits += int(hits.sum())
            counts.num_misses += int((~hits).sum())
            counts.num_repeats += len(lookup.sources) - len(lookup.unique)
        if rows is not None and hits.all():
            return done(rows)
        part = _only(lookup, ~hits)
        pulling = self._client.pull(table, part)
        answer = _After(pulling)

        def finish(pulled: Future[FloatArray]) -> None:
            try:
                fresh = pulled.result()
                self._keep(caches, table, part.unique, fresh, stamp)
                whole = np.empty((len(hits), fresh.shape[1]), np.float32) if rows is None else rows
                whole[~hits] = fresh
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(whole)

        pulling.add_done_callback(finish)
        return answer

    def _keep(
        self, caches: dict[str, RowCache], table: str, keys: NDArray[np.uint64], rows: FloatArray, stamp: int
    ) -> None:
        with self._lock:
            if table not in caches:
                caches[table] = RowCache(rows.shape[1], self._memory_bytes)
            caches[table].put(keys, np.ascontiguousarray(rows), stamp)


def _only(lookup: Lookup, chosen: NDArray[np.bool_]) -> Lookup:
    """Return the lookup of some of the unique keys, each once, in the same order and shards."""
    before = np.concatenate([[0], np.cumsum(chosen)])
    each = np.arange(before[-1], dtype=np.int32)
    starts = np.arange(before[-1] + 1, dtype=np.int32)
    return Lookup(lookup.unique[chosen], before[lookup.bounds].astype(np.int64), each, each, starts)
