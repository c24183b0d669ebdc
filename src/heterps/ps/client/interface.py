"""Interfaces of clients: how training reaches the tables, wherever they are: pull and push by lookup, with futures.

    lookup (keys by shard) --pull--> [shard 0] [shard 1] ... --> rows of the unique keys
    gradients of the batch --push--> summed by key ---> [shard 0] [shard 1] ...

`Client` is all that the training loop knows; what is behind it may be this process (local.py) or servers (remote.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.ps.client.counts import ClientCounts
from heterps.ps.keys.dedup import Lookup
from heterps.ps.protocol.messages import Iteration, Round
from heterps.ps.protocol.row_files import RowFileInfo, RowFiles, VersionRange
from heterps.ps.table.changes import Reader
from heterps.ps.table.metadata import TableCounters
from heterps.ps.table.rows import Rows
from heterps.ps.table.tiers import TierCounts


class RowClient(Protocol):
    """What a SparseEmbedding needs: rows of sparse tables.

    A future fails with the error that a shard met; arguments that no shard could take are refused at once.
    """

    @property
    def num_shards(self) -> int:
        """The number of shards that lookups must be made for."""

    def rows_here(self, table: str) -> int | None:
        """Return the number of rows of a table in this process, 0 if none was trained or loaded; None: on servers."""

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        """Pull rows of the lookup's unique keys, [u, dim]; unknown keys are created unless told otherwise."""

    def push(
        self, table: str, lookup: Lookup, grads: FloatArray, round: Round | Iteration | None = None
    ) -> Future[None]:
        """Push gradients [n, dim] of all keys of the lookup's batch; one optimizer step a unique key.

        With a `round` this is one of its parts: the step is made with the sum of all of them, once all have come. The
        answer says that the part is applied or kept; a pull does not wait for the others. An iteration of a lane is
        applied once, whichever incarnation of the worker pushes it.
        """


class Client(RowClient, Protocol):
    """The one interface between training and parameters."""

    def pull_dense(self, table: str) -> Future[FloatArray]:
        """Return the newest values of a dense table. They may be shared with it: treat them as read-only."""

    def push_dense(self, table: str, grads: FloatArray, round: Round | Iteration | None = None) -> Future[None]:
        """Push the gradient of every value of a dense table: one step, or a part of its `round` as in `push`."""

    def flush(self) -> None:
        """Let what was called so far travel now. Waiting for any answer does the same."""

    def close(self) -> None:
        """Release threads and sockets. It may be called twice."""


class JobClient(Client, Protocol):
    """What a whole job needs beyond steps: first values, sizes, and tables in and out for checkpoints.

    Tables that any number of shards exported can be imported into any number of others. The calls that return no future
    wait, and raise what a shard met.
    """

    samples: int | None
    """The samples that the job has seen; pushes tell the tables, whose schedules need them."""

    @property
    def counts(self) -> ClientCounts | None:
        """The messages and bytes with all servers so far; None where there are no servers."""

    @property
    def is_remote(self) -> bool:
        """Whether the tables are on servers. If not, answers are there at once, and values may be the tables' own."""

    def compare_mirrors(self) -> None:
        """Compare the tables of servers with those of their mirrors, if any; MirrorDiffers where two are not equal."""

    def round_squares(self, table: str, number: int) -> Future[float]:
        """Return the sum of squares of the gradients of a round that waits, all of whose parts have come."""

    def apply_round(self, table: str, number: int, factor: float) -> Future[None]:
        """Make the step of a round that waits, with the sum of its parts times `factor`."""

    def end_rounds(self, rounds: int) -> None:
        """Say with all that is called from now on that rounds up to this number are over, so that they are applied."""

    def tell_rounds(self) -> None:
        """Say it now, though nothing is called, and wait for nothing."""

    def after_round(self, number: int) -> AbstractContextManager[None]:
        """Let servers answer what is called within the context when rounds up to this number are over."""

    def num_rounds(self, table: str) -> Future[set[int]]:
        """Return how many rounds of a table the servers have applied: one number where they agree."""

    def drop_rounds(self, table: str) -> Future[None]:
        """Forget what has come of rounds of a table that wait: all their parts will be pushed again."""

    def fill_dense(self, table: str, values: FloatArray) -> Future[None]:
        """Give a dense table its first values. The first of several fills counts, so every worker may do it."""

    def num_rows(self, table: str) -> int:
        """Return the number of rows of a sparse table."""

    def num_bytes(self, table: str) -> int:
        """Return the bytes of memory of a sparse table."""

    def tier_counts(self, table: str) -> TierCounts | None:
        """Return what is in memory and on disk, and what has moved, over all shards; None for a table without tiers."""

    def counters(self, table: str) -> TableCounters:
        """Count rows of a sparse table that came and went, and gradients that were refused, over all shards."""

    def served_s(self, table: str) -> float:
        """Return the seconds that the servers of a sparse table have spent on messages, as their mean; 0 without."""

    def server_stats(self) -> Future[list[bytes]]:
        """Return the figures of every server, each the JSON of a ServerStats; nothing where there are no servers."""

    def export_rows(self, table: str) -> tuple[Rows, int]:
        """Return all rows of a sparse table, shard after shard, and the number of pushes it has seen."""

    def begin_save(
        self, table: str, files: RowFiles, path: str, version: VersionRange | None = None
    ) -> Callable[[], list[RowFileInfo]]:
        """Take the rows of a sparse table as they are now, and write them to new files, a shard a file where it can be.

        Their paths begin with `path`. What is returned gives the files when they are written, on any thread. Pushes may
        come meanwhile, unless the table has tiers, whose rows are written before this returns. No process holds more
        than one shard's rows. StorageError where a disk refuses, NotFinite where a row is not finite.

        version  write only the rows that changed since the version before; all rows where a shard does not know it.
                 With the keys that went, readers know the table as it is. Followers get no optimizer state
        """

    def keys_gone(self, table: str, since: int, reader: Reader = "followers") -> NDArray[np.uint64] | None:
        """Return the keys of a sparse table that lost their row since a version; None where a shard cannot tell."""

    def load_rows(
        self, table: str, files: RowFiles, paths: Sequence[str], num_pushes: int, metadata: Mapping[str, NDArray[Any]]
    ) -> None:
        """Fill an empty sparse table from files that any number of shards wrote, and from their metadata, if any.

        Rows of later files take the place of those of earlier ones; a file without values has keys that went.
        """

    def num_pushes(self, table: str) -> int:
        """Return the number of pushes that a sparse table has seen."""

    def export_metadata(self, table: str) -> dict[str, NDArray[Any]]:
        """Return what the shards of a sparse table know besides their rows (see table/metadata.py)."""

    def import_rows(
        self, table: str, rows: Rows, num_pushes: int, metadata: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """Fill an empty sparse table with rows, and the metadata, that any number of shards exported."""

    def export_dense(self, table: str) -> tuple[FloatArray, FloatArray, int]:
        """Copy the values [n] and the optimizer state [words of it] of a dense table, and its number of steps."""

    def import_dense(self, table: str, values: FloatArray, state: FloatArray, num_steps: int) -> None:
        """Take over what `export_dense` gave. The table counts as filled: a later fill does nothing."""
