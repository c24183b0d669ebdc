"""Pushes: gradients of a worker on their way to the servers, and what the coordinator is told when they are there.

gradients --send--> every table of the stage, as a part of the round or an update of its own
                       |
                    announce: when the servers have acknowledged all of them --> Pushed to the coordinator,
                              while the worker may already compute what is next
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from heterps.arrays import FloatArray
from heterps.lookups import RowGradients
from heterps.ps.client.interface import JobClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.messages import Iteration, Round
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Pushed
from heterps.training.protocol.stage_tables import StageTables
from heterps.training.worker.dense_parts import DenseParts
from heterps.training.worker.turns import Key


class RoundPlace(NamedTuple):
    """The place of a worker among those that push to the same tables."""

    tables: StageTables
    layout: Layout
    worker: str

    def contributors(self, table: str) -> tuple[str, ...]:
        """All workers that push to a table, in the order in which their gradients are added."""
        stages = self.tables.stages[table]
        return tuple(worker for stage in stages for worker in self.layout.stages[stage].workers)

    def part(self, table: str, key: Key) -> Round | Iteration:
        """What a push to a table belongs to. Rounds of several workers wait until all have pushed to all tables: until
        then they can be repeated."""
        number, lane = key
        if lane != ALL_LANES:
            return Iteration(lane, number)
        workers = self.contributors(table)
        return Round(number, workers.index(self.worker), len(workers), waits=len(self.layout.workers) > 1)

    @property
    def widths(self) -> dict[str, int]:
        """The number of values in a row, for each sparse table that the worker's stage uses and trains."""
        own = set(self.tables.of_stage(self.layout.stage_of(self.worker))) - self.tables.tables.frozen
        return {spec.name: spec.dim for spec in self.tables.tables.sparse if spec.name in own}


def send_gradients(
    client: JobClient,
    parts: DenseParts,
    place: RoundPlace,
    dense: Mapping[str, FloatArray],
    rows: Sequence[RowGradients],
    samples: int,
    key: Key,
) -> list[Future[None]]:
    """Push the gradients of an iteration of a lane, or of all in a round. They travel when the client is flushed.

    In a round every table of the stage gets a contribution, even an empty one: the others wait for it.
    """
    client.samples = samples
    pushes = [client.push(*taken, place.part(taken.table, key)) for taken in rows]
    if key[1] == ALL_LANES:
        none = make_lookup(np.empty(0, np.uint64), client.num_shards)
        widths = place.widths
        for table in widths.keys() - {taken.table for taken in rows}:
            pushes.append(client.push(table, none, np.empty((0, widths[table]), np.float32), place.part(table, key)))
    return pushes + [parts.push(table, grads, samples, place.part(table, key)) for table, grads in dense.items()]


class _Announced(NamedTuple):
    pushes: list[Future[None]]
    told: Future[None]


class Pushes:
    """Pushes under way. `tell` sends a message and its arrays to the coordinator, on any thread."""

    def __init__(self, tell: Callable[[Pushed, Mapping[str, Any] | None], None]) -> None:
        self._tell = tell
        self._under_way: list[_Announced] = []
        self._lock = threading.Lock()

    def announce(self, pushes: list[Future[None]], message: Pushed, values: Mapping[str, Any] | None = None) -> None:
        """Tell `message` when the servers have taken all `pushes`."""
        announced = _Announced(pushes, Future())
        self._under_way.append(announced)
        left = len(pushes) + 1

        def one_more(_: Future[None] | None) -> None:
            nonlocal left
            with self._lock:
                left -= 1
                is_last = left == 0
            if is_last:
                self._acknowledged(announced, message, values)

        for push in pushes:
            push.add_done_callback(one_more)
        one_more(None)  # there may be no pushes at all

    def check(self) -> None:
        """Raise the error that a push, or telling of it, has met."""
        assert self.num_under_way >= 0

    @property
    def num_under_way(self) -> int:
        """The number of pushes that were announced and not told yet. Raises what a push, or telling of it, has met."""
        is_told = [announced.told.done() for announced in self._under_way]
        told = [announced.told for announced, done in zip(self._under_way, is_told, strict=True) if done]
        self._under_way = [a for a, done in zip(self._under_way, is_told, strict=True) if not done]
        for one in told:
            one.result()
        return len(self._under_way)

    def wait_for_all(self) -> None:
        """Wait until no push is under way."""
        while self.num_under_way:
            self.wait()

    def wait(self) -> None:
        """Wait until the oldest push that is under way was told."""
        pushes, told = self._under_way[0]
        for push in pushes:
            push.exception()  # fetches it, if nobody else does
        told.result()

    def _acknowledged(self, announced: _Announced, message: Pushed, values: Mapping[str, Any] | None = None) -> None:
        try:
            for push in announced.pushes:
                push.result()
            self._tell(message, values)
        except Exception as error:  # whatever it is: the worker must not wait for a word that never comes
            announced.told.set_exception(error)
        else:
            announced.told.set_result(None)
