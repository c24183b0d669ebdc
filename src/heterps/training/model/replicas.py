"""Replicas: one stage on several threads. Each thread takes a piece of a micro-batch through a replica of its own.

    rows of the whole micro-batch, pulled once
        |
        +--> piece 0 --> replica 0: forward, backward --> gradients 0 --+
        +--> piece 1 --> replica 1: forward, backward --> gradients 1 --+--> summed in this order, pushed once
        ...

The replicas share the memory of the parameters and have gradients of their own: data parallel training in one process.
The step is that of the whole batch up to the rounding of float32, and no thread waits for another inside a layer, as
threads that share one multiplication do; with tables and reader on the same few cores that matters.

It needs a whole model in one stage, and samples that do not influence one another: a loss that is a mean over samples
(see objectives.py), no buffers (BatchNorm keeps statistics of the batch in them), no random numbers (threads would draw
them in any order). Whether a model is like that is tried out on its first batch; one that is not trains undivided.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.arrays import FloatArray
from heterps.devices import Precision
from heterps.lookups import PreparedSlots, RowGradients, TableKeys, joined_gradients, slice_slots
from heterps.model.stages import StageModule, Values, leaves
from heterps.model.trace import Trace
from heterps.ps.client.interface import RowClient
from heterps.training.model.device import Device
from heterps.training.model.errors import GradientCheck
from heterps.training.model.objectives import Objectives, is_mean_over_samples
from heterps.training.model.replica import Replica
from heterps.training.protocol.stage_tables import StageTables

LEAST_SAMPLES = 64
"""Smallest number of samples of a piece. Smaller batches, such as the last of an epoch, are not divided."""
LEAST_WORK = 40_000_000
"""Smallest product of a piece's samples and the model's dense parameters. Below it, which is some milliseconds of
computing, two threads take longer than one: handing pieces over and joining them costs more than it saves."""


class StagePart(NamedTuple):
    """What a worker computes: stage `number`, from 0 on, of a model that is divided into `stages`."""

    model: nn.Module
    trace: Trace
    stages: Sequence[StageModule]
    tables: StageTables
    number: int
    objectives: Objectives
    device: Device | None = None
    precision: Precision = "fp32"

    @property
    def is_last(self) -> bool:
        return self.number == len(self.stages) - 1

    @property
    def is_whole(self) -> bool:
        return len(self.stages) == 1

    def replica(
        self, rows: RowClient, values: Mapping[str, Tensor] | None = None, *, in_place: bool = False
    ) -> Replica:
        return Replica(
            self.model,
            self.trace,
            self.stages[self.number],
            self.tables,
            self.number,
            self.is_last,
            self.objectives,
            rows,
            self.device,
            values,
            in_place=in_place,
            precision=self.precision,
        )


class Replicas:
    """The replicas of one lane, or of all lanes of a round: one for each thread, on the same parameters.

    values      memory of the parameters by dense table, to be shared with others; none: its own
    in_place    the first replica is the model itself, not a copy
    accumulate  number of micro-batches in which a whole model computes what it is given, one after another
    """

    def __init__(
        self,
        part: StagePart,
        rows: RowClient,
        num_threads: int = 1,
        values: Mapping[str, Tensor] | None = None,
        *,
        in_place: bool = False,
        accumulate: int = 1,
    ) -> None:
        self._part, self._rows, self._accumulate = part, rows, accumulate
        self.first = part.replica(rows, values, in_place=in_place)
        others = num_threads - 1 if part.is_whole else 0
        self._all = [self.first, *(part.replica(rows, self.first.values) for _ in range(others))]
        self._check = GradientCheck(part.model, {table: part.tables.parameters[table] for table in self.first.values})
        num_values = sum(values.numel() for values in self.first.values.values())
        self._least_samples = max(LEAST_SAMPLES, LEAST_WORK // max(num_values, 1))  # of a piece
        self._divisible: bool | None = None if others else False  # None: until it was tried
        self._pool: ThreadPoolExecutor | None = None
        self._are_checked = False  # the gradients of rows

    def prepare(self, slots: PreparedSlots) -> None:
        """Work out ahead of use, in any thread, which rows a run on these slots will ask for."""
        self.first.prepare(slots)

    def parts(self, values: Values) -> list[tuple[str, TableKeys]]:
        """What a run on `values`, whose slots are prepared, will ask for: each table with its keys."""
        return [part for slots in _slots_of(values) for part in self.first.parts(slots)]

    def load(self, dense: Mapping[str, FloatArray]) -> None:
        """Copy values of the stage's dense tables into the parameters. No run may be under way."""
        self.first.load(dense)

    def forward(self, key: Hashable, values: Values, seed: int | None = None) -> dict[str, Any]:
        """The values to send on; backward will need `key`. See Replica.forward."""
        return self.first.forward(key, values, seed)

    def backward(self, key: Hashable, gradients: Values) -> dict[str, Any]:
        return self.first.backward(key, gradients)

    def loss(
        self, key: Hashable, values: Values, label: Tensor, num_samples: int | None, seed: int | None = None
    ) -> tuple[float, NDArray[np.float32], dict[str, Any]]:
        """Forward and backward of the last stage, on all threads if the samples can be divided. See Replica.loss.

        If it takes several micro-batches one after another, only the gradients stay in memory until the last.
        """
        if self._accumulate == 1 or not self._part.is_whole:
            return self._loss(key, values, label, num_samples, seed)
        total = num_samples or len(label)
        bounds = [len(label) * i // self._accumulate for i in range(self._accumulate + 1)]
        found = [
            self._loss(key, _cut(values, a, b), label[a:b], total, None if seed is None else (seed + a) % 2**63)
            for a, b in pairwise(bounds)
            if b > a
        ]
        return sum(loss for loss, *_ in found), np.concatenate([logits for _, logits, _ in found]), {}

    def _loss(
        self, key: Hashable, values: Values, label: Tensor, num_samples: int | None, seed: int | None
    ) -> tuple[float, NDArray[np.float32], dict[str, Any]]:
        if self._divides(values, label):
            return self._loss_of_pieces(key, values, label, num_samples or len(label))
        return self.first.loss(key, values, label, num_samples, seed)

    def take_gradients(self, when: str) -> tuple[dict[str, FloatArray], list[RowGradients]]:
        """Gradients of all runs since the last call. They are good until the next run begins.

        NotFinite where one is NaN or infinite; `when` it is from is part of the text: "of step 12".
        """
        for other in self._all[1:]:
            self.first.add_dense(other)
        dense = self.first.take_dense()
        uses = [use for replica in self._all for use in replica.take_uses()]
        rows = joined_gradients(sorted(uses, key=lambda use: use.part.start), self._rows.num_shards)
        are_checked, self._are_checked = self._are_checked, False
        self._check(dense, () if are_checked else rows, uses, when)
        return dense, rows

    def drop(self, key: Hashable) -> None:
        """Drop a run, if there is one, whose backward will not come."""
        self.first.drop(key)

    def forget(self) -> None:
        """Drop all runs and gradients, after an error."""
        self._are_checked = False
        for replica in self._all:
            replica.forget()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    # --- pieces ------------------------------------------------------------------------------------------------------

    def _divides(self, values: Values, label: Tensor) -> bool:
        if self._divisible is False:
            return False
        is_small = len(label) // len(self._all) < self._least_samples
        if self._divisible is None:
            if is_small:  # and so are most batches: threads inside a layer would cost as much as pieces do
                torch.set_num_threads(1)
                return False
            self._divisible = self._try_out(values, label)
            if self._divisible:
                torch.set_num_threads(1)  # the pieces keep the cores busy; threads inside a layer would fight for them
        return self._divisible and not is_small

    def _loss_of_pieces(
        self, key: Hashable, values: Values, label: Tensor, total: int
    ) -> tuple[float, NDArray[np.float32], dict[str, Any]]:
        is_all = total == len(label)  # else others follow, and their rows are checked together

        def run(replica: Replica, piece: Values, where: slice) -> tuple[float, NDArray[np.float32], dict[str, Any]]:
            found = replica.loss(key, piece, label[where], total)
            if is_all:
                replica.check_rows(key)  # here, on as many threads
            return found

        results = self._together(values, len(label), run)
        self._are_checked = is_all
        return sum(loss for loss, *_ in results), np.concatenate([logits for _, logits, _ in results]), {}

    def _together(self, values: Values, total: int, run: Callable[[Replica, Values, slice], Any]) -> list[Any]:
        """`run` with every replica and its piece of `values`: the first on this thread, the others on theirs."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                len(self._all) - 1, "heterps-piece", initializer=torch.set_num_threads, initargs=(1,)
            )
        pulled = self._pull(values)
        bounds = [total * i // len(self._all) for i in range(len(self._all) + 1)]
        pieces = [(_cut(values, a, b), slice(a, b)) for a, b in pairwise(bounds)]
        calls = list(zip(self._all, pieces, strict=True))
        others = [self._pool.submit(run, replica, *piece) for replica, piece in calls[1:]]
        try:
            results = [run(self.first, *calls[0][1])]
        finally:  # no thread works on after an error in another
            ended = [other.exception() for other in others]
            for table, part in pulled:
                del part.ahead[table]  # the next step pulls anew
        for error in ended:
            if error is not None:
                raise error
        return results + [other.result() for other in others]

    def _pull(self, values: Values) -> list[tuple[str, TableKeys]]:
        """Pull the rows of all pieces once, and wait for them. Returns those that were not asked for before."""
        parts = self.parts(values)
        new = [(table, part) for table, part in parts if table not in part.ahead]
        for table, part in new:
            rows = self._rows.pull(table, part.lookup)
            part.ahead[table] = partial(_same, rows)
        for table, part in parts:
            width = part.ahead[table]().result().shape[1]
            if part.whole is None:
                part.grads[table] = np.empty((len(part.keys), width), np.float32)
        return new

    def _try_out(self, values: Values, label: Tensor) -> bool:
        """Whether the model gives the pieces of a batch what it gives the whole, and draws no random numbers."""
        model = self._part.model
        if not is_mean_over_samples(model) or any(buffer.numel() for buffer in model.buffers()):
            return False
        random = torch.get_rng_state()
        whole = self.first.output(values)
        parts = self._together(values, len(label), lambda replica, piece, _: replica.output(piece))
        drew = not torch.equal(random, torch.get_rng_state())
        torch.set_rng_state(random)
        self._part.objectives.checked(model, whole, len(label))
        joined = (torch.cat(pieces) for pieces in zip(*map(leaves, parts), strict=True))
        alike = all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(joined, leaves(whole), strict=True))
        return alike and not drew


def _same(rows: Future[FloatArray]) -> Future[FloatArray]:
    return rows


def _slots_of(values: Values) -> list[PreparedSlots]:
    return [value for value in values.values() if isinstance(value, PreparedSlots)]


def _cut(values: Values, first: int, last: int) -> dict[str, Any]:
    """Samples first..last-1 of the inputs of a model."""
    return {
        name: slice_slots(value, first, last) if isinstance(value, PreparedSlots) else value[first:last]
        for name, value in values.items()
    }
