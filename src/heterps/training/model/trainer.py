"""Trainer: a model, its tables and one step of training, for heterps' own loop and for yours.

    batch --prepare (ahead of use, any thread)--> lookups
          --step--> [1] pull the dense parameters             [2] forward: pull rows, run the layers
                    [3] loss and backward                     [4] push the gradients of rows and dense parameters
                    [5] ask for the rows of the next batch: with the pushes, or before [2] where rows may be stale

The dense parameters of the model are views of one flat vector, the dense table; their gradients are views of another.
So pulling and pushing them is one message for a whole model, and in this process not even a copy. On servers what is
asked from [4] to the next [2] travels together: one message to each server and back for a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from heterps.checkpoint import Snapshot
from heterps.config import Optimizers, Tables, Tiers
from heterps.data.batch import Batch
from heterps.errors import ConfigError, NotFinite
from heterps.nn import DENSE, RowGradients, bind_tables, model_tables
from heterps.ps.client.cache import MEMORY_BYTES, CacheCounts, CachedClient
from heterps.ps.client.local import FloatArray, JobClient, RowClient, in_process
from heterps.ps.client.remote import ClientCounts, RemoteClient
from heterps.ps.client.row_cache import least_bytes
from heterps.ps.protocol.specs import Tables as ModelTables
from heterps.training.model.errors import GradientCheck, first_bad_parameter, own_code
from heterps.training.model.losses import batch_loss, logits_of
from heterps.training.model.pieces import Pieces, trainable, view_parameters
from heterps.training.model.tabled import ModelOnTables, flat_parameters


class Gradients(NamedTuple):
    """What a batch asks of the parameters."""

    loss: float  # mean over the batch
    logits: FloatArray
    num_samples: int
    rows: list[RowGradients]
    dense: FloatArray  # of all dense parameters, side by side


class Trainer(ModelOnTables):
    """Trains `model` in this process. The model's parameters move into a dense table, its embeddings onto sparse ones.

    model       called as model(dense, slots), it returns logits [batch] or [batch, 1]; a method `losses(output, label)`
                or `loss(output, label)` replaces the default, the mean binary cross entropy (see losses.py)
    tables      how rows come and go, in tables of modules that do not say it themselves
    tiers       memory for the sparse tables and a folder for the rows beyond it; none: all rows are in memory
    num_shards  of the sparse tables; they work in parallel, and the results do not depend on their number
    num_classes of the labels, from 0 on; from three classes on the model returns a score for each, [batch, num_classes]
    num_threads among which the samples of a batch are divided, if the model lets them be (see pieces.py)
    connect     a client of servers that hold these tables; none: they are in this process
    staleness   by how many pushes rows on servers may be behind (see ps/client/cache.py), with `cache_bytes` a table
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Optimizers = Optimizers(),
        *,
        tables: Tables = Tables(),
        tiers: Tiers | None = None,
        seed: int = 0,
        num_shards: int = 1,
        num_threads: int = 1,
        num_classes: int = 2,
        connect: Callable[[ModelTables], JobClient] | None = None,
        staleness: int = 0,
        cache_bytes: int = MEMORY_BYTES,
    ) -> None:
        whole = model_tables(model, optimizers, tables=tables, tiers=tiers, seed=seed)
        if connect is not None and staleness and cache_bytes:
            _check_cache(cache_bytes, whole)
        own = trainable(model)
        values = flat_parameters(model, own)
        client: JobClient = in_process(whole, num_shards) if connect is None else connect(whole)
        self.samples = 0  # trained on so far
        self._check = GradientCheck(model, {DENSE: tuple(own)})
        self._pushes: list[Future[None]] = []  # of the last step
        self._pulled: Future[FloatArray] | None = None  # the dense parameters for the next one
        try:
            super().__init__(model, whole, {DENSE: tuple(own)}, client, num_classes)
            self.client.fill_dense(DENSE, values).result()
            self._cache = None if connect is None else CachedClient(self.client, staleness, cache_bytes)
            shared = np.require(self.client.pull_dense(DENSE).result(), requirements="W")
            self._values[DENSE] = shared
            self._grads = torch.zeros(len(values))
            view_parameters(own.values(), torch.from_numpy(shared), self._grads)
            rows: RowClient = self._cache or self.client
            bind_tables(model, rows)
            self._pieces = (
                Pieces(model, shared, self._grads, rows, num_threads, num_classes) if num_threads > 1 else None
            )
        except BaseException:
            client.close()
            raise

    def step(self, batch: Batch, upcoming: Batch | None = None) -> tuple[float, NDArray[np.float32]]:
        """One optimizer step on `batch`; its mean loss and logits (or scores of classes), as they were before the step.

        The rows of the `upcoming` batch, if it was prepared, are asked for ahead. On servers the step may still be on
        its way when this returns; every later step, evaluation or snapshot shows it, or raises what became of it.
        """
        found = self._compute(batch, upcoming)
        try:
            self._push(found, upcoming)
        finally:
            self._grads.zero_()
        return found.loss, found.logits

    def gradients(self, batch: Batch) -> Gradients:
        """What a step on `batch` would push, with the parameters as they are now. They stay as they are."""
        found = self._compute(batch)
        found = found._replace(dense=found.dense.copy())
        self._grads.zero_()
        return found

    def apply(self, gradients: Gradients) -> None:
        """One optimizer step with gradients that were computed before, whatever has been applied since."""
        self._push(gradients)

    def refresh(self) -> None:
        """Make the model's parameters the newest. In this process they are always."""
        pulled = (self._pulled or self.client.pull_dense(DENSE)).result()
        self._pulled = None
        self._take_over(DENSE, pulled)

    @property
    def client_counts(self) -> ClientCounts | None:
        """What the talk with servers has come to; None without servers."""
        return self.client.counts if isinstance(self.client, RemoteClient) else None

    @property
    def cache_counts(self) -> CacheCounts | None:
        """Rows that came from copies of this worker, and rows that did not; None where no copies are kept."""
        return None if self._cache is None or self._cache.bound == 0 else self._cache.counts()

    def snapshot(self, samples: int, progress: dict[str, Any], *, in_place: bool = False) -> Snapshot:
        """Everything that a later `restore` needs to go on as if nothing had happened.

        The rows of tables are copied; `in_place`, and always with tiers, they stay where they are until the snapshot is
        saved or restored: do that before the next step.
        """
        self._settle()
        self._pulled = None
        return self._snapshot(samples, progress, in_place=in_place)

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        self._pulled = None
        self.samples = snapshot.samples

    def close(self) -> None:
        """Let go of threads and tables. A step on its way to servers may be lost; the end of a `with` waits for it."""
        self._pushes = []
        self.client.close()
        if self._pieces is not None:
            self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._settle()
        finally:
            self.close()

    def _settle(self) -> None:
        """Wait for the pushes of the last step; raise what one of them met."""
        pushes, self._pushes = self._pushes, []
        for push in pushes:
            push.result()

    def _prefetch(self, batch: Batch, iterations: int) -> None:
        if self._cache is not None:
            for module in self._embeddings:
                for table, lookup in module.lookups(batch.slots):
                    self._cache.prefetch(table, lookup, iterations)

    def _run(self, batch: Batch) -> tuple[float, NDArray[np.float32]]:
        """Forward and backward on the whole batch; its mean loss and logits."""
        output = self._forward(batch)
        loss = batch_loss(self.model, output, torch.from_numpy(batch.label))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), logits_of(output, self._num_classes)

    def _compute(self, batch: Batch, upcoming: Batch | None = None) -> Gradients:
        """The gradients of a batch; the dense ones are the trainer's own vector, to be zeroed once they were used.

        An error leaves no gradients behind.
        """
        self.refresh()  # [1]
        if upcoming is not None:
            self._prefetch(upcoming, iterations=1)
        try:
            return self._differentiate(batch)
        except BaseException:
            self._forget_gradients()
            raise

    def _differentiate(self, batch: Batch) -> Gradients:
        pieces = self._pieces if self._pieces is not None and self._pieces.fit(batch) else None
        with own_code(self.model, self._when(batch)):
            loss, logits = pieces.run(batch) if pieces else self._run(batch)  # [2] [3]
        if not math.isfinite(loss):
            bad = first_bad_parameter(self.model.named_parameters())
            raise NotFinite(f"the loss of step {self.clock + 1} is {loss}. {bad}")
        if pieces:
            rows = pieces.take_gradients()
        else:
            rows = [taken for module in self._embeddings for taken in module.take_gradients()]
        self._check({DENSE: self._grads.numpy()}, rows, f"of step {self.clock + 1}")
        return Gradients(loss, logits, len(batch), rows, self._grads.numpy())

    def _forget_gradients(self) -> None:
        self._grads.zero_()
        for module in self._embeddings:
            module.take_gradients()
        if self._pieces is not None:
            self._pieces.forget_gradients()

    def _push(self, gradients: Gradients, upcoming: Batch | None = None) -> None:
        self._settle()
        self.client.samples = self.samples
        self._pushes = [self.client.push(*rows) for rows in gradients.rows]
        self._pushes.append(self.client.push_dense(DENSE, gradients.dense))  # [4]
        self.clock += 1
        self.samples += gradients.num_samples
        if self._cache is None:
            self._settle()
        else:
            self._cache.tick()
            if upcoming is not None:
                self._prefetch(upcoming, iterations=0)  # [5]
        self._pulled = self.client.pull_dense(DENSE)


def _check_cache(cache_bytes: int, tables: ModelTables) -> None:
    needed = max((least_bytes(spec.dim) for spec in tables.sparse), default=0)
    if cache_bytes < needed:
        raise ConfigError(
            f"servers.cache_bytes: {cache_bytes:,} bytes hold too few rows of the widest table: give at least "
            f"{needed:,}, or 0 for no copies"
        )
