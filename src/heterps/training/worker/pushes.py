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

from heterps.nn import RowGradients
from heterps.ps.client.local import FloatArray, JobClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.messages import Round
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import Pushed
from heterps.training.protocol.stage_tables import StageTables
from heterps.training.worker.dense_parts import DenseParts


class _Announced(NamedTuple):
    pushes: list[Future[None]]
    told: Future[None]


class Pushes:
    """Of the worker `worker` of stage `stage`. `tell` sends a message to the coordinator, on any thread."""

    def __init__(
        self,
        worker: str,
        stage: int,
        tables: StageTables,
        client: JobClient,
        tell: Callable[[Pushed, list[Any]], None],
    ) -> None:
        self._worker, self._tables, self._client, self._tell = worker, tables, client, tell
        own = set(tables.of_stage(stage))
        self._dims = {spec.name: spec.dim for spec in tables.tables.sparse if spec.name in own}
        self._under_way: list[_Announced] = []
        self._lock = threading.Lock()
        self._layout: Layout | None = None

    def follow(self, layout: Layout) -> None:
        self._layout = layout

    def contributors(self, table: str) -> tuple[str, ...]:
        """All workers that push to a table, in the order in which their gradients are added."""
        assert self._layout is not None
        stages = self._tables.stages[table]
        return tuple(worker for stage in stages for worker in self._layout.stages[stage].workers)

    def send(
        self,
        dense: Mapping[str, FloatArray],
        rows: Sequence[RowGradients],
        parts: DenseParts,
        samples: int,
        round: int | None,
    ) -> list[Future[None]]:
        """To a round every table of the stage gets a contribution, even if it is nothing: the others wait for it."""
        self._client.samples = samples
        pushes = [self._client.push(*taken, self._part(taken.table, round)) for taken in rows]
        if round is not None:
            none = make_lookup(np.empty(0, np.uint64), self._client.num_shards)
            for table in self._dims.keys() - {taken.table for taken in rows}:
                grads = np.empty((0, self._dims[table]), np.float32)
                pushes.append(self._client.push(table, none, grads, self._part(table, round)))
        pushes += [parts.push(table, grads, samples, self._part(table, round)) for table, grads in dense.items()]
        self._client.flush()
        return pushes

    def announce(self, pushes: list[Future[None]], message: Pushed, frames: list[Any]) -> None:
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
                self._acknowledged(announced, message, frames)

        for push in pushes:
            push.add_done_callback(one_more)
        one_more(None)  # there may be no pushes at all

    @property
    def num_under_way(self) -> int:
        """Announced and not told yet. Raises what a push has met, or telling of it."""
        is_told = [announced.told.done() for announced in self._under_way]
        told = [announced.told for announced, done in zip(self._under_way, is_told, strict=True) if done]
        self._under_way = [a for a, done in zip(self._under_way, is_told, strict=True) if not done]
        for one in told:
            one.result()
        return len(self._under_way)

    def wait(self) -> None:
        """Until the oldest that is under way was told."""
        pushes, told = self._under_way[0]
        for push in pushes:
            push.exception()  # fetches it, if nobody else does
        told.result()

    def _acknowledged(self, announced: _Announced, message: Pushed, frames: list[Any]) -> None:
        try:
            for push in announced.pushes:
                push.result()
            self._tell(message, frames)
        except Exception as error:  # whatever it is: the worker must not wait for a word that never comes
            announced.told.set_exception(error)
        else:
            announced.told.set_result(None)

    def _part(self, table: str, round: int | None) -> Round | None:
        if round is None:
            return None
        workers = self.contributors(table)
        return Round(round, workers.index(self._worker), len(workers))
