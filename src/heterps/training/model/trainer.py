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

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from heterps.arrays import FloatArray
from heterps.checkpoint import Snapshot
from heterps.config import Optimizers, Schema, Tables, Tiers
from heterps.data.batch import Batch
from heterps.devices import Precision
from heterps.errors import ConfigError
from heterps.lookups import PreparedSlots, RowGradients, prepared
from heterps.model.stages import split
from heterps.model.trace import one_layer
from heterps.nn import bind_tables, model_tables
from heterps.ps.client.cache import MEMORY_BYTES, CacheCounts, CachedClient
from heterps.ps.client.interface import JobClient, RowClient
from heterps.ps.client.local import in_process
from heterps.ps.client.row_cache import least_bytes
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.model.clipping import clip_gradients
from heterps.training.model.objectives import Objectives
from heterps.training.model.parameters import flat_parameters
from heterps.training.model.replicas import Replicas, StagePart
from heterps.training.model.tabled import ModelOnTables
from heterps.training.protocol.stage_tables import divide_tables


class Gradients(NamedTuple):
    """The gradients of a batch, for rows and dense parameters."""

    loss: float  # mean over the batch
    logits: FloatArray
    num_samples: int
    dense: dict[str, FloatArray]  # by table
    rows: list[RowGradients]


class Trainer(ModelOnTables):
    """Trains `model` in this process. The model's parameters move into a dense table, its embeddings onto sparse ones.

    model       called as model(dense, slots), it returns logits [batch] or [batch, 1], or what the labels of `columns`
                need; a method `losses(output, label)` or `loss(output, label)` replaces the default (see objectives.py)
    tables      how rows come and go, in tables of modules that do not say it themselves
    tiers       memory for the sparse tables and a folder for the rows beyond it; none: all rows are in memory
    num_shards  of the sparse tables; they work in parallel, and the results do not depend on their number
    columns     the labels, by default one that is 0 or 1, and whether samples have weights
    num_threads among which the samples of a batch are divided, if they can be and that pays (see replicas.py)
    precision   of forward passes: fp32, or bf16 by torch's autocast
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
        columns: Schema = Schema(),
        precision: Precision = "fp32",
        connect: Callable[[TableSpecs], JobClient] | None = None,
        staleness: int = 0,
        cache_bytes: int = MEMORY_BYTES,
    ) -> None:
        whole = model_tables(model, optimizers, tables=tables, tiers=tiers, seed=seed)
        if connect is not None and staleness and cache_bytes:
            check_cache(cache_bytes, whole)
        traced, objectives = one_layer(model), Objectives(columns)
        divided = divide_tables(whole, model, traced, [0], optimizers)
        part = StagePart(model, traced, split(traced, []), divided, 0, objectives, precision=precision)
        dense = {table: flat_parameters(model, names) for table, names in part.tables.parameters.items()}
        of_model = part.tables.tables
        client: JobClient = in_process(of_model, num_shards) if connect is None else connect(of_model)
        self.samples = 0  # trained on so far
        self._inputs, self._clip = traced.inputs, optimizers.clip
        self._pushes: list[Future[None]] = []  # of the last step
        self._pulled: dict[str, Future[FloatArray]] | None = None  # the dense parameters for the next one
        try:
            super().__init__(model, of_model, part.tables.parameters, client, objectives)
            for table, values in dense.items():
                client.fill_dense(table, values).result()
                self._values[table] = np.require(client.pull_dense(table).result(), requirements="W")
            self._cache = None if connect is None else CachedClient(client, staleness, cache_bytes)
            rows: RowClient = self._cache or client
            bind_tables(model, rows, of_model.frozen)
            shared = {table: torch.from_numpy(values) for table, values in self._values.items()}
            self._replicas = Replicas(part, rows, num_threads, shared, in_place=True, accumulate=optimizers.accumulate)
        except BaseException:
            client.close()
            raise

    def step(self, batch: Batch, upcoming: Batch | None = None) -> tuple[float, NDArray[np.float32]]:
        """One optimizer step on `batch`; its mean loss and logits (or scores of classes), as they were before the step.

        The rows of the `upcoming` batch, if it was prepared, are asked for ahead. On servers the step may still be on
        its way when this returns; every later step, evaluation or snapshot shows it, or raises what became of it.
        """
        found = self._compute(batch, upcoming)
        self._push(found, upcoming)
        return found.loss, found.logits

    def gradients(self, batch: Batch) -> Gradients:
        """The gradients of `batch`, not clipped, with the parameters as they are now. They stay as they are."""
        found = self._compute(batch)
        return found._replace(dense={table: grads.copy() for table, grads in found.dense.items()})

    def apply(self, gradients: Gradients) -> None:
        """One optimizer step with gradients that were computed before, clipped, whatever has been applied since."""
        self._push(gradients)

    def refresh(self) -> None:
        """Load the newest parameters into the model. In this process it always has them."""
        pulled, self._pulled = self._pulled or self._pull(), None
        for table, values in pulled.items():
            self._take_over(table, values.result())

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
        """Release threads and tables. A step on its way to servers may be lost; the end of a `with` waits for it."""
        self._pushes = []
        try:
            self.client.close()
        finally:
            self._replicas.close()

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

    def _pull(self) -> dict[str, Future[FloatArray]]:
        return {table: self.client.pull_dense(table) for table in self._values}

    def _prefetch(self, batch: Batch, iterations: int) -> None:
        if self._cache is not None and isinstance(batch.slots, PreparedSlots):
            for table, part in self._replicas.parts({"slots": batch.slots}):
                if table not in part.ahead and (asked := self._cache.ask_ahead(table, part.lookup, iterations)):
                    part.ahead[table] = asked

    def _compute(self, batch: Batch, upcoming: Batch | None = None) -> Gradients:
        """The gradients of a batch, which are good until the next is computed. An error leaves none behind."""
        self.refresh()  # [1]
        if upcoming is not None:
            self._prefetch(upcoming, iterations=1)
        values = dict(zip(self._inputs, (torch.from_numpy(batch.dense), prepared(batch.slots)), strict=True))
        step = self.clock + 1
        try:
            loss, logits, _ = self._replicas.loss(step, values, torch.from_numpy(batch.label), None)  # [2] [3]
            return Gradients(loss, logits, len(batch), *self._replicas.take_gradients(f"of step {step}"))
        except BaseException:
            self._replicas.forget()
            raise
        finally:
            for _, part in self._replicas.parts(values):
                part.ahead.clear()  # rows that were asked for ahead are for one step only

    def _push(self, gradients: Gradients, upcoming: Batch | None = None) -> None:
        self._settle()
        self.client.samples = self.samples
        dense, rows = clip_gradients(self._clip, gradients.dense, gradients.rows)
        self._pushes = [self.client.push(*part) for part in rows]
        self._pushes += [self.client.push_dense(table, grads) for table, grads in dense.items()]  # [4]
        self.clock += 1
        self.samples += gradients.num_samples
        if self._cache is None:
            self._settle()
        else:
            self._cache.tick()
            if upcoming is not None:
                self._prefetch(upcoming, iterations=0)  # [5]
        self._pulled = self._pull()


def check_cache(cache_bytes: int, tables: TableSpecs) -> None:
    """Raises ConfigError where copies of this size would hold too few rows."""
    needed = max((least_bytes(spec.dim) for spec in tables.sparse), default=0)
    if cache_bytes < needed:
        raise ConfigError(
            f"servers.cache_bytes: {cache_bytes:,} bytes hold too few rows of the widest table: give at least "
            f"{needed:,}, or 0 for no copies"
        )
