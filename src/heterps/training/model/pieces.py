"""A step on several threads: each takes a piece of the batch through a twin of the model.

    rows of the whole batch, pulled once
        |
        +--> piece 0 --> twin 0: forward, backward --> gradients 0 --+
        +--> piece 1 --> twin 1: forward, backward --> gradients 1 --+--> summed in this order, pushed once
        ...

The twins share the memory of the parameters and have gradients of their own. That is data parallel training in one
process: the step is that of the whole batch up to the rounding of float32, and no thread waits for another inside a
layer, as threads that share one multiplication do; with tables and reader on the same few cores that matters.

It needs samples that do not influence one another: a loss that is a mean over samples (see losses.py), no buffers
(BatchNorm keeps statistics of the batch in them), no random numbers (threads would draw them in any order), each table
used once. Whether a model is like that is tried out on its first batch; one that is not trains on the whole batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.data.batch import Batch, Slots
from heterps.nn import RowGradients, embeddings, slice_slots
from heterps.ps.client.local import RowClient, done
from heterps.ps.keys.dedup import Lookup
from heterps.ps.protocol.messages import Round
from heterps.training.model.losses import checked_output, is_mean_over_samples, logits_of, piece_loss

LEAST_SAMPLES = 64
"""Of a piece. Smaller batches, such as the last of an epoch, are not divided."""

FloatArray = NDArray[np.float32]


class Pieces:
    """Runs steps of `model`, whose parameters are views of `values` and whose tables are `client`'s."""

    def __init__(
        self,
        model: nn.Module,
        values: FloatArray,
        grads: Tensor,
        client: RowClient,
        num_threads: int,
        num_classes: int = 2,
    ) -> None:
        self._model = model
        self._client = client
        self._num_classes = num_classes
        self._embeddings = [module for _, module in embeddings(model)]
        self._grads = [grads, *(torch.zeros_like(grads) for _ in range(num_threads - 1))]
        self._stores = [_PulledRows() for _ in range(num_threads)]
        self._twins = [_twin(model, values, flat, store) for flat, store in zip(self._grads, self._stores, strict=True)]
        self._pool = ThreadPoolExecutor(
            num_threads - 1, "heterps-piece", initializer=torch.set_num_threads, initargs=(1,)
        )
        self._divisible: bool | None = None  # until it was tried
        self._lookups: list[tuple[str, Lookup]] = []

    def fit(self, batch: Batch) -> bool:
        """Whether this batch can be divided among the threads."""
        if len(batch) < LEAST_SAMPLES * len(self._twins):
            return False
        if self._divisible is None:
            self._divisible = self._try_out(batch)
            if self._divisible:
                torch.set_num_threads(1)  # the pieces keep the cores busy; threads inside a layer would fight for them
        return self._divisible

    def run(self, batch: Batch) -> tuple[float, FloatArray]:
        """Forward and backward on every piece; the mean loss of the batch and its logits."""
        bounds, pieces = self._cut(batch)
        others = [self._pool.submit(self._run_piece, i, batch, bounds, pieces[i]) for i in range(1, len(pieces))]
        try:
            results = [self._run_piece(0, batch, bounds, pieces[0])]
        finally:  # no thread works on after an error in another
            ended = [other.exception() for other in others]
        for error in ended:
            if error is not None:
                raise error
        results += [other.result() for other in others]
        for grads in self._grads[1:]:
            self._grads[0].add_(grads)
            grads.zero_()
        return sum(loss for loss, _ in results), np.concatenate([logits for _, logits in results])

    def take_gradients(self) -> list[RowGradients]:
        """The row gradients of the last run; the dense ones are in the first gradient vector."""
        store = self._stores[0]  # what backward did not reach in one piece it reached in none
        return [
            RowGradients(table, lookup, store.grads[table]) for table, lookup in self._lookups if table in store.pushed
        ]

    def forget_gradients(self) -> None:
        """Let go of what a run that failed has left."""
        for grads in self._grads:
            grads.zero_()
        for twin in self._twins:
            for _, module in embeddings(twin):
                module.take_gradients()

    def close(self) -> None:
        self._pool.shutdown()

    def _cut(self, batch: Batch) -> tuple[list[int], list[Slots]]:
        """Pull the rows of the batch for all twins, make room for their gradients, and cut the batch."""
        num_shards = self._client.num_shards  # once: servers may join and leave at any time
        self._lookups = [found for module in self._embeddings for found in module.lookups(batch.slots, num_shards)]
        pulls = {table: self._client.pull(table, lookup) for table, lookup in self._lookups}
        rows = {table: pull.result() for table, pull in pulls.items()}
        grads = {
            table: np.empty((len(lookup.inverse), rows[table].shape[1]), np.float32) for table, lookup in self._lookups
        }
        bounds = [len(batch) * i // len(self._twins) for i in range(len(self._twins) + 1)]
        pieces = [slice_slots(batch.slots, first, last) for first, last in pairwise(bounds)]
        starts = dict.fromkeys(rows, 0)
        for twin, store, piece in zip(self._twins, self._stores, pieces, strict=True):
            store.load(num_shards, rows, grads, dict(starts))
            for _, module in embeddings(twin):
                for table, lookup in module.lookups(piece):
                    starts[table] += len(lookup.inverse)
        return bounds, pieces

    def _run_piece(self, i: int, batch: Batch, bounds: Sequence[int], slots: Slots) -> tuple[float, FloatArray]:
        where = slice(bounds[i], bounds[i + 1])
        output = self._twins[i](torch.from_numpy(batch.dense[where]), slots)
        loss = piece_loss(self._twins[i], output, torch.from_numpy(batch.label[where]), len(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        for _, module in embeddings(self._twins[i]):
            module.push()
        return float(loss.detach()), logits_of(output, self._num_classes)

    def _try_out(self, batch: Batch) -> bool:
        """Whether the model gives the pieces of a batch what it gives the whole, and draws no random numbers."""
        if not is_mean_over_samples(self._model) or any(buffer.numel() for buffer in self._model.buffers()):
            return False
        bounds, pieces = self._cut(batch)
        random = torch.get_rng_state()
        with torch.no_grad():
            whole = self._model(torch.from_numpy(batch.dense), batch.slots)
            parts = [
                twin(torch.from_numpy(batch.dense[first:last]), piece)
                for twin, piece, (first, last) in zip(self._twins, pieces, pairwise(bounds), strict=True)
            ]
        drew = not torch.equal(random, torch.get_rng_state())
        torch.set_rng_state(random)
        used_once = all(set(store.pulls.values()) <= {1} for store in self._stores)
        checked_output(self._model, whole, len(batch), self._num_classes)
        same = torch.allclose(torch.cat(parts), whole, rtol=1e-3, atol=1e-4)
        return bool(same and used_once and not drew)


class _PulledRows:
    """A twin's client: hands out rows pulled for the whole batch, and keeps gradients until they are pushed with it."""

    num_shards = 1

    def load(
        self, num_shards: int, rows: dict[str, FloatArray], grads: dict[str, FloatArray], starts: dict[str, int]
    ) -> None:
        """Before a step: rows by table, in the order of lookups for so many shards, and where the piece's gradients go
        in those of the whole batch."""
        self.num_shards = num_shards
        self.rows, self.grads, self.starts = rows, grads, starts
        self.pulls = dict.fromkeys(rows, 0)
        self.pushed: set[str] = set()

    def pull(self, table: str, lookup: Lookup, *, create: bool = True) -> Future[FloatArray]:  # noqa: ARG002
        self.pulls[table] += 1
        return done(self.rows[table])

    def push(self, table: str, lookup: Lookup, grads: FloatArray, round: Round | None = None) -> Future[None]:  # noqa: ARG002
        self.pushed.add(table)
        start = self.starts[table]
        self.grads[table][start : start + len(lookup.inverse)] = grads
        return done(None)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by their first names, in the order of the model."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def view_parameters(parameters: Iterable[nn.Parameter], values: Tensor, grads: Tensor | None = None) -> None:
    """Make the parameters views of `values`, side by side, and their gradients, if they need any, of `grads`."""
    at = 0
    for parameter in parameters:
        view = slice(at, at + parameter.numel())
        parameter.data = values[view].view(parameter.shape)
        if grads is not None:
            parameter.grad = grads[view].view(parameter.shape)
        at = view.stop


def _twin(model: nn.Module, values: FloatArray, grads: Tensor, store: _PulledRows) -> nn.Module:
    """A copy of the model with its own gradients, on the same parameters and on the rows of `store`."""
    twin = copy.deepcopy(model)
    view_parameters(trainable(twin).values(), torch.from_numpy(values), grads)
    for (_, module), (_, original) in zip(embeddings(twin), embeddings(model), strict=True):
        module.bind(store, original.table_names)
    return twin
