"""RemoteClient: the tables of a job on its servers, through any channel. A JobClient like LocalClient.

    caller's thread   pull, push --> Session: queued         future.result() --> flush: one message to each server
    I/O thread        receive answers, ask again, give up --> Session --> futures done

Calls return at once. What was called since the last wait travels together; with rows in fp32 the results equal those of
a LocalClient to the bit, whatever the network does, because servers apply the pushes of a worker in their order and a
pull is answered after the pushes that came before it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from heterps.errors import HeterpsError, PeerLost
from heterps.ps import calls, whole_tables
from heterps.ps.calls import FloatArray
from heterps.ps.dedup import Lookup, sum_rows
from heterps.ps.messages import Counted
from heterps.ps.roster import Roster
from heterps.ps.session import Options, Session
from heterps.ps.shard import Tables
from heterps.ps.table.optimizers import state_words
from heterps.ps.table.sparse import Rows
from heterps.ps.table.tiers import TierCounts
from heterps.ps.table.upkeep import Upkeep, stack
from heterps.wire import Channel

T = TypeVar("T")
LONGEST_WAIT_S = 0.05
"""How long the I/O thread may be deaf to a caller that made its next time earlier."""
MAX_PREFETCHED = 256


class _Answer(Future[T]):
    """A future that sends what is queued when somebody begins to wait for it."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__()
        self._flush = flush
        self.set_running_or_notify_cancel()  # what is on its way cannot be called back

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            self._flush()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._flush()
        return super().exception(timeout)


class _Prefetched(NamedTuple):
    lookup: Lookup  # kept, so that its id stays its own
    seen: int  # own pushes that the rows have taken
    rows: Future[FloatArray]


class RemoteClient:
    """Worker `worker`, in its life `incarnation`, at the servers of `roster`. Any thread may call it.

    connect  is told every roster that the client learns of, before it speaks to new servers
    """

    def __init__(
        self,
        worker: str,
        channel: Channel,
        roster: Roster,
        tables: Tables,
        *,
        incarnation: int = 1,
        options: Options = Options(),
        connect: Callable[[Roster], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.samples: int | None = None
        self._session = Session(worker, incarnation, roster, tables.digest, options)
        self._channel = channel
        self._connect = connect
        self._connected = roster
        self._clock = clock
        self._dims = {spec.name: spec.dim for spec in tables.sparse}
        self._sizes = {spec.name: spec.size for spec in tables.dense}
        self._state_words = {spec.name: state_words(spec.optimizer, spec.size) for spec in tables.dense}
        self._pushes = dict.fromkeys([*self._dims, *self._sizes], 0)  # made so far, by table
        self._exports = itertools.count(1)
        self._prefetched: dict[tuple[str, int], _Prefetched] = {}
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        connect(roster)
        self._thread = threading.Thread(target=self._run, name=f"heterps-client-{worker}", daemon=True)
        self._thread.start()

    @property
    def num_shards(self) -> int:
        return self._session.roster.num_shards

    @property
    def roster(self) -> Roster:
        """The newest that a server told."""
        return self._session.roster

    # --- Client ------------------------------------------------------------------------------------------------------

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:
        """As Client.pull. Rows prefetched for this very lookup are taken while they are fresh enough."""
        with self._changed:
            early = self._prefetched.pop((table, id(lookup.unique)), None)
            allowed = self._session.options.max_unseen_pushes
            if early is not None and create and self._pushes[table] - early.seen <= allowed:
                return early.rows
            return self._pull(table, lookup, create)

    def prefetch(self, table: str, lookup: Lookup) -> None:
        """Pull rows ahead of use. The `pull` of the same lookup gets them unless they miss too many own pushes by then.

        How many they may miss is `Options.max_unseen_pushes`; with 0 nothing is prefetched.
        """
        with self._changed:
            if self._session.options.max_unseen_pushes == 0:
                return
            while len(self._prefetched) >= MAX_PREFETCHED:
                del self._prefetched[next(iter(self._prefetched))]
            rows = self._pull(table, lookup, create=True)
            self._prefetched[table, id(lookup.unique)] = _Prefetched(lookup, self._pushes[table], rows)

    def push(self, table: str, lookup: Lookup, grads: FloatArray) -> Future[None]:
        needed = (len(lookup.inverse), self._dims[table])
        if grads.shape != needed:
            raise ValueError(f"table {table} needs gradients {list(needed)} for this lookup, got {list(grads.shape)}")
        summed = np.empty((len(lookup.unique), needed[1]), np.float32)
        sum_rows(grads, lookup.sources, lookup.starts, 0, len(lookup.unique), summed)
        return self._push(
            table,
            lambda sequence: calls.PushRowsCall(
                table, lookup, summed, sequence, self._session.options.coding(table), self.samples
            ),
        )

    def pull_dense(self, table: str) -> Future[FloatArray]:
        with self._changed:
            coding = self._session.options.coding(table)
            return self._submit(calls.PullDenseCall(table, self._sizes[table], self._pushes[table], coding))

    def push_dense(self, table: str, grads: FloatArray) -> Future[None]:
        values, coding = self._dense_values(table, grads), self._session.options.coding(table)
        return self._push(table, lambda sequence: calls.PushDenseCall(table, values, sequence, coding, self.samples))

    def fill_dense(self, table: str, values: FloatArray) -> Future[None]:
        with self._changed:
            return self._submit(calls.PushDenseCall(table, self._dense_values(table, values), 0, calls.EXACT))

    def flush(self) -> None:
        """Send what was called so far. Waiting for any answer does the same."""
        with self._changed:
            self._session.flush()
            self._send()
        self._settle()

    def close(self) -> None:
        """End the thread and the channel. Calls without an answer fail."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._session.fail(HeterpsError("the client was closed"))
            self._changed.notify_all()
        self._thread.join()
        self._settle()
        self._channel.close()

    # --- tables as a whole -------------------------------------------------------------------------------------------

    def num_rows(self, table: str) -> int:
        return self._count(table).num_rows

    def num_bytes(self, table: str) -> int:
        return self._count(table).num_bytes

    def tier_counts(self, table: str) -> TierCounts | None:
        return self._count(table).tiers

    def export_rows(self, table: str) -> tuple[Rows, int]:
        return whole_tables.export_rows(self._call, table, self._pushes[table], self._exports)

    def row_parts(self, table: str) -> Callable[[], Iterator[Rows]]:
        return lambda: iter([self.export_rows(table)[0]])

    def num_pushes(self, table: str) -> int:
        return self._read_upkeep(table)[0]

    def export_upkeep(self, table: str) -> dict[str, NDArray[Any]]:
        return stack(self._read_upkeep(table)[1])

    def import_rows(
        self, table: str, rows: Rows, num_pushes: int, upkeep: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        whole_tables.import_rows(self._push, table, rows, num_pushes, upkeep or {})

    def export_dense(self, table: str) -> tuple[FloatArray, FloatArray, int]:
        if not self._sizes[table]:  # no server has anything of it
            return np.empty(0, np.float32), np.empty(0, np.float32), self._pushes[table]
        return whole_tables.export_dense(self._call, table, self._pushes[table], self._exports)

    def import_dense(self, table: str, values: FloatArray, state: FloatArray, num_steps: int) -> None:
        values = self._dense_values(table, values)
        if state.shape != (self._state_words[table],):
            raise ValueError(f"the saved state has {state.size:,} words, {table} needs {self._state_words[table]:,}")
        whole_tables.import_dense(self._push, table, values, state, num_steps)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _pull(self, table: str, lookup: Lookup, create: bool) -> Future[FloatArray]:
        coding = self._session.options.coding(table)
        return self._submit(
            calls.PullRowsCall(
                table, lookup, self._dims[table], after=self._pushes[table], create=create, coding=coding
            )
        )

    def _push(self, table: str, make: Callable[[int], calls.Call]) -> Future[None]:
        with self._changed:
            self._pushes[table] += 1
            return self._submit(make(self._pushes[table]))

    def _read_upkeep(self, table: str) -> tuple[int, list[Upkeep]]:
        read: tuple[int, list[Upkeep]] = self._call(whole_tables.ReadUpkeepCall(table, self._pushes[table])).result()
        return read

    def _count(self, table: str) -> Counted:
        counted: Counted = self._call(whole_tables.CountRowsCall(table, self._pushes[table])).result()
        return counted

    def _call(self, call: calls.Call) -> Future[Any]:
        with self._changed:
            return self._submit(call)

    def _dense_values(self, table: str, values: FloatArray) -> FloatArray:
        if values.shape != (self._sizes[table],):
            raise ValueError(f"dense table {table} has {self._sizes[table]:,} values, got shape {list(values.shape)}")
        return np.array(values, np.float32)  # the caller goes on to use its own

    def _submit(self, call: calls.Call) -> Future[Any]:
        """Queue a call; with too many queued already, wait until servers have taken some."""
        session = self._session
        if not session.has_room:
            session.flush()
            self._send()
            deadline_s = session.options.deadline_s
            if not self._changed.wait_for(lambda: session.has_room or session.error is not None, deadline_s):
                session.fail(PeerLost(f"servers took no more calls of worker {session.worker} for {deadline_s:g} s"))
        answer: Future[Any] = _Answer(self.flush)
        session.submit(call, answer, self._pushes[call.table], self._clock())
        return answer

    def _send(self) -> None:
        """Send what is due, without waiting: a peer that is not there must not keep the others from theirs."""
        if self._session.roster is not self._connected:
            self._connected = self._session.roster
            self._connect(self._connected)
        for peer, parts in self._session.outgoing(self._clock()):
            try:
                self._channel.send(peer, parts, 0.0)
            except PeerLost:
                self._session.unsent(peer, parts, self._clock())

    def _run(self) -> None:
        """The I/O thread. Whatever ends it ends every call too: nobody waits for a thread that is gone."""
        try:
            while not self._closed:
                self._turn()
        except Exception as error:
            with self._changed:
                self._session.fail(
                    PeerLost(f"worker {self._session.worker} cannot reach its servers any more: {error}")
                )
                self._changed.notify_all()
            self._settle()

    def _turn(self) -> None:
        """Send what is due, then wait for a message, at most until something else is due."""
        with self._changed:
            self._send()
            at = self._session.next_time()
            self._changed.notify_all()
        self._settle()
        wait_s = LONGEST_WAIT_S if at is None else min(max(at - self._clock(), 0.0), LONGEST_WAIT_S)
        received = self._channel.receive(wait_s)
        if received is not None:
            with self._changed:
                self._session.receive(*received, self._clock())

    def _settle(self) -> None:
        """Give the futures what they wait for. Outside the lock, because they run callbacks."""
        with self._changed:
            finished = self._session.finished()
        for future, value in finished:
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)
