"""LocalClient: the tables in this process. It calls their shards directly, each on a thread of its own.

So no shard needs a lock. Training sees it by the same interface as servers (interface.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.ps.keys.dedup import Lookup
from heterps.ps.keys.placement import shard_numbers
from heterps.ps.protocol.messages import Iteration, Round
from heterps.ps.protocol.row_files import RowFileInfo, RowFiles, VersionRange, shard_path
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.ps.shard.versions import begin_rows, keys_gone, replace_rows
from heterps.ps.table.changes import Reader
from heterps.ps.table.dense import DenseTable
from heterps.ps.table.metadata import TableCounters, stack, unstack
from heterps.ps.table.rows import Rows
from heterps.ps.table.sparse import SparseTable
from heterps.ps.table.tiers import TierCounts, TieredTable

T = TypeVar("T")

FEW_TO_PULL, FEW_TO_PUSH = 16_384, 4_096
"""A thread takes a fraction of a millisecond to wake; in about that time one alone handles as many unique keys."""


class LocalClient:
    """Every table in this process, sparse ones in `num_shards` shards that work in parallel."""

    def __init__(self, sparse: Sequence[TableSpec], dense: dict[str, DenseTable], num_shards: int = 1) -> None:
        if num_shards < 1:
            raise ValueError(f"num_shards must be at least 1, got {num_shards}")
        self.specs = {spec.name: spec for spec in sparse}
        self._shards = {spec.name: [spec.make_shard(num_shards) for _ in range(num_shards)] for spec in sparse}
        self.samples: int | None = None
        self._dense = dense
        self._filled: set[str] = set()  # dense tables that have their first values
        self._changed: set[str] = set()  # sparse tables with rows that are not initial values
        self._num_shards = num_shards
        # The caller's thread serves shard 0 while it would wait anyway; the others have a thread each.
        self._pool = ThreadPoolExecutor(num_shards - 1, "heterps-shard") if num_shards > 1 else None

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def counts(self) -> None:
        """Return None, since nothing travels."""

    def compare_mirrors(self) -> None:
        """Do nothing: tables in this process have no mirrors."""

    @property
    def num_shards(self) -> int:
        return self._num_shards

    def rows_here(self, table: str) -> int:
        return self.num_rows(table) if table in self._changed else 0

    def set_rate(self, rate: float) -> None:
        """Multiply every learning rate by `rate`, beside its schedule, until told otherwise."""
        for table in (table for shards in self._shards.values() for table in shards):
            table.rate = rate
        for dense in self._dense.values():
            dense.rate = rate

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        shards = self._shards_for(table, lookup)
        rows = np.empty((len(lookup.unique), shards[0].dim), np.float32)

        def pull_shard(shard: int) -> None:
            part = slice(lookup.bounds[shard], lookup.bounds[shard + 1])
            table = shards[shard]
            if create and isinstance(table, TieredTable):
                table.step()  # between the last push and this pull: no row of either is needed now
            table.pull(lookup.unique[part], rows[part], create=create)

        return self._on_every_shard(len(lookup.unique) < FEW_TO_PULL, pull_shard, rows)

    def push(
        self, table: str, lookup: Lookup, grads: FloatArray, round: Round | Iteration | None = None
    ) -> Future[None]:
        _check_whole(table, round)
        self._changed.add(table)
        shards = self._shards_for(table, lookup)
        needed = (len(lookup.inverse), shards[0].dim)
        if grads.shape != needed:
            raise ValueError(f"table {table} needs gradients {list(needed)} for this lookup, got {list(grads.shape)}")

        def push_shard(shard: int) -> None:
            first, last = lookup.bounds[shard], lookup.bounds[shard + 1]
            keys, starts = lookup.unique[first:last], lookup.starts[first : last + 1]
            shards[shard].push_sums(keys, grads, lookup.sources, starts, samples=self.samples)

        return self._on_every_shard(len(lookup.unique) < FEW_TO_PUSH, push_shard, None)

    def pull_dense(self, table: str) -> Future[FloatArray]:
        return done(self._dense[table].values)

    def push_dense(self, table: str, grads: FloatArray, round: Round | Iteration | None = None) -> Future[None]:
        _check_whole(table, round)
        self._dense[table].push(grads, samples=self.samples)
        return done(None)

    def round_squares(self, table: str, number: int) -> Future[float]:
        raise ValueError(f"round {number} of table {table}: tables in this process keep no rounds")

    def apply_round(self, table: str, number: int, factor: float) -> Future[None]:
        raise ValueError(f"round {number} of table {table}: tables in this process keep no rounds, times {factor}")

    def end_rounds(self, rounds: int) -> None:
        """Do nothing: rounds have one part here, and are applied at once."""

    def tell_rounds(self) -> None:
        """Do nothing, as in `end_rounds`."""

    def after_round(self, number: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing, as in `end_rounds`."""
        return nullcontext()

    def num_rounds(self, table: str) -> Future[set[int]]:
        raise ValueError(f"table {table} is in this process, and keeps no rounds")

    def drop_rounds(self, table: str) -> Future[None]:
        raise ValueError(f"table {table} is in this process, and keeps no rounds")

    def fill_dense(self, table: str, values: FloatArray) -> Future[None]:
        target = self._dense[table]
        if values.shape != (target.size,):
            raise ValueError(f"dense table {table} has {target.size:,} values, got shape {list(values.shape)}")
        if table not in self._filled:
            target.values[:] = values
            self._filled.add(table)
        return done(None)

    def flush(self) -> None:
        """Do nothing: every call is carried out at once."""

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        for table in (table for shards in self._shards.values() for table in shards):
            if isinstance(table, TieredTable):
                table.close()

    def num_rows(self, table: str) -> int:
        return sum(len(shard) for shard in self._shards[table])

    def num_bytes(self, table: str) -> int:
        return sum(shard.num_bytes for shard in self._shards[table])

    def tier_counts(self, table: str) -> TierCounts | None:
        counts = [shard.counts for shard in self._shards[table] if isinstance(shard, TieredTable)]
        return TierCounts.total(counts) if counts else None

    def counters(self, table: str) -> TableCounters:
        return TableCounters.total(shard.counters() for shard in self._shards[table])

    def served_s(self, table: str) -> float:
        del table  # there are no servers
        return 0.0

    def server_stats(self) -> Future[list[bytes]]:
        """Return nothing: there are no servers."""
        return done([])

    def export_rows(self, table: str) -> tuple[Rows, int]:
        parts = [shard.export_rows() for shard in self._shards[table]]
        return Rows.join(parts), self._shards[table][0].num_pushes

    def import_rows(
        self, table: str, rows: Rows, num_pushes: int, metadata: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Fill an empty sparse table with rows, and the metadata, that any number of shards exported."""
        self._changed.add(table)
        homes = shard_numbers(rows.keys, self._num_shards)
        for number, kept in enumerate(unstack(metadata or {}, self._num_shards)):
            self._shards[table][number].import_rows(rows.select(homes == number), num_pushes, kept)

    def num_pushes(self, table: str) -> int:
        return self._shards[table][0].num_pushes

    def export_metadata(self, table: str) -> dict[str, NDArray[Any]]:
        return stack([shard.export_metadata() for shard in self._shards[table]])

    def begin_save(
        self, table: str, files: RowFiles, path: str, version: VersionRange | None = None
    ) -> Callable[[], list[RowFileInfo]]:
        saves = [
            begin_rows(shard, table, files, shard_path(path, 1, number), version, shard.num_pushes)
            for number, shard in enumerate(self._shards[table])
        ]
        return lambda: [save.write() for save in saves]

    def keys_gone(self, table: str, since: int, reader: Reader = "followers") -> NDArray[np.uint64] | None:
        parts = [keys_gone(shard, since, reader) for shard in self._shards[table]]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None

    def load_rows(
        self, table: str, files: RowFiles, paths: Sequence[str], num_pushes: int, metadata: Mapping[str, NDArray[Any]]
    ) -> None:
        shards, kept = self._shards[table], unstack(metadata, self._num_shards)
        if num_rows := self.num_rows(table):
            raise ValueError(f"rows are loaded into an empty table; this one has {num_rows:,} rows")
        for shard, own in zip(shards, kept, strict=True):
            shard.check_metadata(own)
            shard.num_pushes = num_pushes
        self._changed.add(table)
        for path in paths:
            for part in files.read(path):
                homes = shard_numbers(part.keys, self._num_shards)
                for number, shard in enumerate(shards):
                    replace_rows(shard, part.select(homes == number))
        for shard, own in zip(shards, kept, strict=True):
            shard.resume(num_pushes, own)

    def export_dense(self, table: str) -> tuple[FloatArray, FloatArray, int]:
        dense = self._dense[table]
        return dense.values.copy(), dense.state.copy(), dense.num_pushes

    def import_dense(self, table: str, values: FloatArray, state: FloatArray, num_steps: int) -> None:
        dense = self._dense[table]
        if values.shape != (dense.size,):
            raise ValueError(f"dense table {table} has {dense.size:,} values, got shape {list(values.shape)}")
        dense.restore(state, num_steps)
        dense.values[:] = values
        self._filled.add(table)

    def _on_every_shard(self, alone: bool, work: Callable[[int], None], result: T) -> Future[T]:
        """Do the work of every shard, each on its thread, or all of it here, `alone`."""
        pool = None if alone else self._pool
        here = range(1) if pool else range(self._num_shards)
        others = [pool.submit(work, shard) for shard in range(1, self._num_shards)] if pool else []
        done: Future[T] = Future()
        error: BaseException | None = None
        for shard in here:
            try:
                work(shard)
            except Exception as met:
                error = met
        for other in others:
            error = other.exception() or error
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
        return done

    def _shards_for(self, table: str, lookup: Lookup) -> list[SparseTable | TieredTable]:
        if len(lookup.bounds) != self._num_shards + 1:
            raise ValueError(f"lookup made for {len(lookup.bounds) - 1} shards; this client has {self._num_shards}")
        return self._shards[table]


def _check_whole(table: str, round: Round | Iteration | None) -> None:
    """Refuse parts of rounds: tables in this process have one worker, which pushes whole rounds."""
    if isinstance(round, Round) and (round.parts > 1 or round.waits):
        raise ValueError(
            f"table {table} is in this process and takes rounds of one part, got one of {round.parts}: "
            "push to servers, or the sum of all parts"
        )


def in_process(tables: TableSpecs, num_shards: int = 1) -> LocalClient:
    """Return a client with all `tables` in this process, empty."""
    dense = {spec.name: DenseTable(spec.size, spec.optimizer, spec.schedule) for spec in tables.dense}
    return LocalClient(tables.sparse, dense, num_shards)


def done(result: T) -> Future[T]:
    """Return a future that has its result already."""
    future: Future[T] = Future()
    future.set_result(result)
    return future
