"""The servers' side of a profile: prepared rows for the worker's part, and the servers' own work to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from heterps.arrays import FloatArray
from heterps.config import Optimizer
from heterps.ps.client.local import done
from heterps.ps.keys.dedup import Lookup, sum_rows
from heterps.ps.protocol.messages import Iteration, Round
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.dense import DenseTable
from heterps.ps.table.sparse import SparseTable

TABLE_BYTES = 128 * 2**20
"""Memory of the tables with which a layer is measured: larger than the CPU caches, as in training."""
MOST_ROWS = 1_000_000
"""Largest number of rows of a measured table besides those of the batch; it limits the time to fill it."""
FILL_ROWS = 16_384
"""Number of rows that are created at once to fill a table; it limits the temporary memory."""

KEY_BYTES = 8
VALUE_BYTES = 4
INDEX_BYTES = 40
"""Largest number of bytes per row in the index of a table, after it has grown."""


@dataclass(frozen=True)
class RowRequest:
    """The rows of one table that one batch needs."""

    spec: TableSpec
    lookup: Lookup

    @property
    def row_bytes(self) -> int:
        """Bytes of the distinct rows."""
        return len(self.lookup.unique) * self.spec.dim * VALUE_BYTES

    @property
    def sync_bytes(self) -> int:
        """Bytes of a pull (keys, rows) and a push (keys, gradients), with each distinct key once."""
        return 2 * self.row_bytes + 2 * len(self.lookup.unique) * KEY_BYTES

    @property
    def spread_bytes(self) -> int:
        """Bytes of the rows as the batch sees them, with duplicates, and of their gradients."""
        return 2 * len(self.lookup.inverse) * self.spec.dim * VALUE_BYTES


class ReadyRows:
    """A client whose pull costs nothing: it returns prepared rows of the right shape.

    A push only sums the gradients of each key, which is the worker's work. `requests` records all pulls.
    """

    num_shards = 1

    def __init__(self, specs: Sequence[TableSpec]) -> None:
        self.requests: list[RowRequest] = []
        self._specs = {spec.name: spec for spec in specs}
        self._rows: dict[str, FloatArray] = {}

    def rows_here(self, table: str) -> int:
        """Return 0: there are no rows to keep."""
        del table
        return 0

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        del create  # there is no table to create rows in
        spec, needed = self._specs[table], len(lookup.unique)
        self.requests.append(RowRequest(spec, lookup))
        if len(self._rows.get(table, ())) < needed:
            rng = np.random.default_rng(spec.seed)
            rows = rng.uniform(-spec.init_scale, spec.init_scale, (needed, spec.dim))
            self._rows[table] = rows.astype(np.float32)
        return done(self._rows[table][:needed])

    def push(
        self, table: str, lookup: Lookup, grads: FloatArray, round: Round | Iteration | None = None
    ) -> Future[None]:
        del round  # there is no other part
        summed = np.empty((len(lookup.unique), self._specs[table].dim), np.float32)
        sum_rows(grads, lookup.sources, lookup.starts, 0, len(lookup.unique), summed)
        return done(None)


def sparse_work(request: RowRequest, table_bytes: int) -> Callable[[], None]:
    """Return a function that pulls and pushes the request's rows on a table of about `table_bytes` with other rows."""
    spec, keys = request.spec, request.lookup.unique
    table = SparseTable(spec.dim, spec.optimizer, spec.seed, spec.init_scale)
    rng = np.random.default_rng(0)
    num_others = min(MOST_ROWS, max(0, table_bytes // (table.row_bytes + INDEX_BYTES) - len(keys)))
    others = rng.integers(0, 2**64, num_others, np.uint64)
    mixed = rng.permutation(np.concatenate([others, keys]))
    for first in range(0, len(mixed), FILL_ROWS):
        table.pull(mixed[first : first + FILL_ROWS])
    rows = np.empty((len(keys), spec.dim), np.float32)
    gradients = rng.standard_normal(rows.shape, np.float32)

    def work() -> None:
        table.pull(keys, rows)
        table.push_unique(keys, gradients)

    return work


def dense_work(num_values: int, optimizer: Optimizer) -> Callable[[], None]:
    """Return a function that hands out all values of a dense table and makes one optimizer step on them."""
    table = DenseTable(num_values, optimizer)
    weights = np.empty(num_values, np.float32)
    gradients = np.random.default_rng(0).standard_normal(num_values, np.float32)

    def work() -> None:
        np.copyto(weights, table.values)
        table.push(gradients)

    return work


def moving_work(num_values: int) -> Callable[[], None]:
    """Return a function that hands out all values of a dense table and adds one worker's gradients to a sum."""
    values, sums = np.ones(num_values, np.float32), np.zeros(num_values, np.float32)
    weights, gradients = np.empty(num_values, np.float32), np.full(num_values, 1e-3, np.float32)

    def work() -> None:
        np.copyto(weights, values)
        np.add(sums, gradients, out=sums)

    return work
