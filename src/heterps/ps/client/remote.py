"""RemoteClient: the tables of a job on its servers, through any channel. A JobClient like LocalClient.

    pull, push --> Session: queued        future.result() --> Pump: one message to each server; answers --> results

Calls return at once. What was called since the last wait travels together; with rows in fp32 the results equal those of
a LocalClient to the bit, whatever the network does, because servers apply the pushes of a worker in their order and a
pull is answered after the pushes that came before it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from heterps.arrays import FloatArray
from heterps.errors import StorageError
from heterps.ps.client.counts import ClientCounts
from heterps.ps.client.pump import Pump
from heterps.ps.client.session import Options, Session
from heterps.ps.keys.dedup import Lookup, sum_rows
from heterps.ps.ops.base import Ask, Call, Done
from heterps.ps.ops.dense import PullDenseCall, PushDenseCall
from heterps.ps.ops.metadata import Counted, CountRows, ReadMetadataCall, ReadStatsCall, ResumeCall
from heterps.ps.ops.mirrors import CompareMirror
from heterps.ps.ops.rounds import ApplyRound, CountRoundsCall, DropRounds, SquaresCall
from heterps.ps.ops.row_files import MAX_PATHS, FilesFound, FindRows, LoadRows, SaveRows, SaveRowsCall
from heterps.ps.ops.rows import PullRowsCall, PushRowsCall
from heterps.ps.ops.tables import TableExport, import_dense, import_parts, import_rows
from heterps.ps.ops.versions import ReadGoneCall
from heterps.ps.protocol.messages import EXACT, Iteration, Round
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.row_files import RowFileInfo, RowFiles, VersionRange
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.shard.versions import files_for
from heterps.ps.table.changes import Reader
from heterps.ps.table.metadata import TableCounters, TableMetadata, stack
from heterps.ps.table.optimizers import state_words
from heterps.ps.table.rows import Rows, check_widths
from heterps.ps.table.tiers import TierCounts
from heterps.wire import Channel, Shared

T = TypeVar("T")
FIRST_WAIT_S, LONGEST_WAIT_S = 0.002, 0.1
"""How soon servers are asked again how far a save is: after twice the time with each answer, up to the longest."""


class _Answer(Future[T]):
    """A future whose result is fetched by the caller that waits for it."""

    def __init__(self, wait: Callable[[Future[Any], float | None], None]) -> None:
        super().__init__()
        self._wait = wait
        self.set_running_or_notify_cancel()  # what is on its way cannot be called back

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            self._wait(self, timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._wait(self, timeout)
        return super().exception(0)


class RemoteClient:
    """Worker `worker`, in its `incarnation`, at the servers of `roster`. Any thread may call it.

    connect  is told every roster that the client learns of, before it speaks to new servers
    pump     moves its messages: with threads, or on a simulated clock
    """

    def __init__(
        self,
        worker: str,
        channel: Channel,
        roster: Roster,
        tables: TableSpecs,
        *,
        incarnation: int = 1,
        options: Options = Options(),
        connect: Callable[[Roster], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        pump: Callable[..., Pump] = Pump,
    ) -> None:
        self.samples: int | None = None
        self._session = Session(worker, incarnation, roster, tables.digest, options)
        self._clock = clock
        self._dims = {spec.name: spec.dim for spec in tables.sparse}
        self._optimizers = {spec.name: spec.optimizer for spec in tables.sparse}
        self._sizes = {spec.name: spec.size for spec in tables.dense}
        self._state_words = {spec.name: state_words(spec.optimizer, spec.size) for spec in tables.dense}
        self._pushes = dict.fromkeys([*self._dims, *self._sizes], 0)  # made so far, by table
        self._exports = itertools.count(1)
        self._counters = channel.counters
        self._room = channel.room if isinstance(channel, Shared) else None
        self._pump = pump(self._session, channel, connect, clock)

    @property
    def num_shards(self) -> int:
        return self._session.roster.num_shards

    def rows_here(self, table: str) -> None:
        """Return None, since servers hold every table."""

    @property
    def roster(self) -> Roster:
        """The newest roster that a server told."""
        return self._session.roster

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def counts(self) -> ClientCounts:
        """The counts of messages and bytes with all servers."""
        wire, session = self._counters, self._session
        return dataclasses.replace(
            session.counts,
            bytes_sent=wire.bytes_sent,
            bytes_received=wire.bytes_received,
            bytes_shared=wire.shared_bytes,
            retries=session.retries,
            dropped=sum(wire.dropped.values()) + session.dropped,
        )

    # --- Client ------------------------------------------------------------------------------------------------------

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        with self._turn():
            coding = self._session.options.coding(table)
            self._session.counts.repeated(lookup, self._dims[table])
            return self._submit(
                PullRowsCall(table, lookup, self._dims[table], after=self._pushes[table], create=create, coding=coding)
            )

    def push(
        self, table: str, lookup: Lookup, grads: FloatArray, round: Round | Iteration | None = None
    ) -> Future[None]:
        needed = (len(lookup.inverse), self._dims[table])
        if grads.shape != needed:
            raise ValueError(f"table {table} needs gradients {list(needed)} for this lookup, got {list(grads.shape)}")
        coding = self._session.options.coding(table)
        summed = self._sum(lookup, grads, travels=coding == EXACT)

        def make(sequence: int) -> PushRowsCall:
            self._session.counts.repeated(lookup, self._dims[table])
            return PushRowsCall(table, lookup, summed, sequence, coding, self.samples, round)

        return self._push(table, make)

    def pull_dense(self, table: str) -> Future[FloatArray]:
        with self._turn():
            coding = self._session.options.coding(table)
            return self._submit(PullDenseCall(table, self._sizes[table], self._pushes[table], coding))

    def push_dense(self, table: str, grads: FloatArray, round: Round | Iteration | None = None) -> Future[None]:
        coding = self._session.options.coding(table)
        values = self._dense_values(table, grads, travels=coding == EXACT)
        return self._push(table, lambda sequence: PushDenseCall(table, values, sequence, coding, self.samples, round))

    def round_squares(self, table: str, number: int) -> Future[float]:
        return self._call(SquaresCall(table, number))

    def apply_round(self, table: str, number: int, factor: float) -> Future[None]:
        return self._push(table, lambda sequence: Ask(ApplyRound(table, sequence, number, factor), Done))

    def end_rounds(self, rounds: int) -> None:
        with self._pump.lock:
            self._session.rounds = rounds

    @contextmanager
    def after_round(self, number: int) -> Iterator[None]:
        with self._pump.lock:
            self._session.after_round = number
            try:
                yield
            finally:
                self._session.after_round = 0

    def tell_rounds(self) -> None:
        self.num_rounds(next(iter(self._pushes)))
        self.flush()

    def greet(self) -> Future[set[int]]:
        """Let all servers know of this incarnation of the worker; they refuse older ones from the answer on."""
        return self.num_rounds(next(iter(self._pushes)))

    def num_rounds(self, table: str) -> Future[set[int]]:
        return self._call(CountRoundsCall(table))

    def drop_rounds(self, table: str) -> Future[None]:
        return self._push(table, lambda sequence: Ask(DropRounds(table, sequence), Done))

    def compare_mirrors(self) -> None:
        """Compare all tables of servers with those of their mirrors; MirrorDiffers where two are not equal."""
        tables = self._pushes if self._session.roster.mirrors else ()
        for answer in [self._call(Ask(CompareMirror(table), Done)) for table in tables]:
            answer.result()

    def fill_dense(self, table: str, values: FloatArray) -> Future[None]:
        with self._turn():
            return self._submit(PushDenseCall(table, self._dense_values(table, values), 0, EXACT))

    def flush(self) -> None:
        self._pump.flush()

    def close(self) -> None:
        """End the thread and the channel. Calls without an answer fail. Safe to call twice."""
        self._pump.close()

    # --- tables as a whole -------------------------------------------------------------------------------------------

    def num_rows(self, table: str) -> int:
        return self._count(table).num_rows

    def num_bytes(self, table: str) -> int:
        return self._count(table).num_bytes

    def tier_counts(self, table: str) -> TierCounts | None:
        return self._count(table).tiers

    def counters(self, table: str) -> TableCounters:
        return self._count(table).counters

    def served_s(self, table: str) -> float:
        return self._count(table).served_s

    def server_stats(self) -> Future[list[bytes]]:
        return self._call(ReadStatsCall(next(iter(self._pushes))))

    def export_rows(self, table: str) -> tuple[Rows, int]:
        return self._export(table).rows()

    def keys_gone(self, table: str, since: int, reader: Reader = "followers") -> NDArray[np.uint64] | None:
        gone: NDArray[np.uint64] | None = self._call(ReadGoneCall(table, self._pushes[table], since, reader)).result()
        return gone

    def begin_save(
        self, table: str, files: RowFiles, path: str, version: VersionRange | None = None
    ) -> Callable[[], list[RowFileInfo]]:
        op = SaveRows(table, self._pushes[table], path, version)
        if self._call(SaveRowsCall(op)).result()() is not None:
            return partial(self._collect, replace(op, begins=False), files)
        # Servers see another disk: their rows come here, and are written now.
        dim = self._dims[table]
        widths = dim, state_words(self._optimizers[table], dim)
        to = files if version is None else files_for(version.reader, files)
        written = self._export(table).save(to, path, self.num_rows(table), widths)
        return lambda: written

    def load_rows(
        self, table: str, files: RowFiles, paths: Sequence[str], num_pushes: int, metadata: Mapping[str, NDArray[Any]]
    ) -> None:
        find = Ask(FindRows(table, self._pushes[table], tuple(paths)), FilesFound)
        if len(paths) <= MAX_PATHS and all(answer.are_there for answer in self._call(find).result().values()):
            self._push(table, lambda n: Ask(LoadRows(table, n, num_pushes, tuple(paths)), Done)).result()
        else:
            import_parts(self._push, table, files.read_all(paths), num_pushes)
        self._resume(table, metadata, num_pushes)

    def num_pushes(self, table: str) -> int:
        return self._read_metadata(table)[0]

    def export_metadata(self, table: str) -> dict[str, NDArray[Any]]:
        return stack(self._read_metadata(table)[1])

    def import_rows(
        self, table: str, rows: Rows, num_pushes: int, metadata: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        check_widths(rows, self._dims[table], self._optimizers[table])
        import_rows(self._push, table, rows, num_pushes)
        self._resume(table, metadata or {}, num_pushes)

    def export_dense(self, table: str) -> tuple[FloatArray, FloatArray, int]:
        if not self._sizes[table]:  # no server has anything of it
            return np.empty(0, np.float32), np.empty(0, np.float32), self._pushes[table]
        return self._export(table).dense()

    def import_dense(self, table: str, values: FloatArray, state: FloatArray, num_steps: int) -> None:
        values = self._dense_values(table, values)
        if state.shape != (self._state_words[table],):
            raise ValueError(f"the saved state has {state.size:,} words, {table} needs {self._state_words[table]:,}")
        import_dense(self._push, table, values, state, num_steps)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _sum(self, lookup: Lookup, grads: FloatArray, *, travels: bool) -> list[FloatArray]:
        """Sum gradients of the unique keys by shard, in memory shared with its server where they travel as they are."""
        sums = []
        for number in range(len(lookup.bounds) - 1):
            first, last = int(lookup.bounds[number]), int(lookup.bounds[number + 1])
            summed = self._empty(number, (last - first, grads.shape[1]), travels=travels)
            sum_rows(grads, lookup.sources, lookup.starts[first : last + 1], 0, last - first, summed)
            sums.append(summed)
        return sums

    def _empty(self, number: int, shape: tuple[int, ...], *, travels: bool) -> FloatArray:
        """Return memory for values for a server, shared with it where they travel as they are."""
        roster, memory = self._session.roster, None
        if travels and self._room is not None and number < roster.num_shards:
            memory = self._room(roster.servers[number].name, 4 * math.prod(shape))
        return np.empty(shape, np.float32) if memory is None else memory.view(np.float32).reshape(shape)

    def _collect(self, op: SaveRows, files: RowFiles) -> list[RowFileInfo]:
        """Wait until servers have written their rows. StorageError where none of them gets any further."""
        left, since_s, wait_s = -1, self._clock(), FIRST_WAIT_S
        while True:
            found: list[RowFileInfo] | int | None = self._call(SaveRowsCall(op)).result()()
            if isinstance(found, list):
                break
            assert found is not None, "the folder was there when the save began"
            if found != left:
                left, since_s = found, self._clock()
            elif self._clock() - since_s > (deadline_s := self._session.options.deadline_s):
                raise StorageError(
                    f"servers have written no row of table {op.table} for {deadline_s:g} s, and {left:,} are left. "
                    "Does their disk answer?"
                )
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        if unseen := [file.path for file in found if not files.has(file.path)]:
            raise StorageError(f"a server has written {unseen[0]}, which is not here: do all mount the same disk?")
        return found

    def _push(self, table: str, make: Callable[[int], Call]) -> Future[None]:
        with self._turn():
            self._pushes[table] += 1
            return self._submit(make(self._pushes[table]))

    def _resume(self, table: str, metadata: Mapping[str, NDArray[Any]], num_pushes: int) -> None:
        if metadata:
            self._push(table, lambda n: ResumeCall(table, metadata, num_pushes, n)).result()

    def _read_metadata(self, table: str) -> tuple[int, list[TableMetadata]]:
        read: tuple[int, list[TableMetadata]] = self._call(ReadMetadataCall(table, self._pushes[table])).result()
        return read

    def _count(self, table: str) -> Counted:
        return Counted.total(self._call(Ask(CountRows(table, self._pushes[table]), Counted)).result().values())

    def _export(self, table: str) -> TableExport:
        return TableExport(self._call, table, self._pushes[table], self._exports)

    def _call(self, call: Call) -> Future[Any]:
        with self._turn():
            return self._submit(call)

    def _dense_values(self, table: str, values: FloatArray, *, travels: bool = False) -> FloatArray:
        """Return a copy, because the caller goes on to use its own; shared with the server where there is one."""
        if values.shape != (self._sizes[table],):
            raise ValueError(f"dense table {table} has {self._sizes[table]:,} values, got shape {list(values.shape)}")
        copy = self._empty(0, values.shape, travels=travels and self.num_shards == 1)
        copy[:] = values
        return copy

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock to number and queue a call; with too many queued, wait until servers have taken some.

        A call that reached the servers before the push that it builds on would wait forever.
        """
        with self._pump.lock:
            if not self._session.has_room:
                self._pump.wait_for_room()  # other threads queue theirs meanwhile
            yield

    def _submit(self, call: Call) -> Future[Any]:
        answer: Future[Any] = _Answer(self._pump.wait)
        self._session.submit(call, answer, self._pushes[call.table], self._clock())
        return answer
