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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.checkpoint import Snapshot
from heterps.config import Optimizers, Tables, Tiers
from heterps.data.batch import Batch
from heterps.errors import ConfigError, HeterpsError, ModelError, NotFinite
from heterps.nn import DENSE, RowGradients, bind_tables, embeddings, model_tables
from heterps.ps.cache import MEMORY_BYTES, CacheCounts, CachedClient
from heterps.ps.client import FloatArray, JobClient, RowClient, TableSpec
from heterps.ps.remote import ClientCounts, RemoteClient
from heterps.ps.row_cache import least_bytes
from heterps.ps.shard import Tables as ModelTables
from heterps.ps.table.tiers import TierCounts
from heterps.ps.table.upkeep import TableCounters
from heterps.training.class_metrics import AnyMetrics, make_metrics
from heterps.training.losses import batch_loss, checked_output, logits_of
from heterps.training.pieces import Pieces, view_parameters
from heterps.training.table_snapshots import load_table, save_table


class Gradients(NamedTuple):
    """What a batch asks of the parameters."""

    loss: float  # mean over the batch
    logits: FloatArray
    num_samples: int
    rows: list[RowGradients]
    dense: FloatArray  # of all dense parameters, side by side


class Trainer:
    """Trains `model` in this process. The model's parameters move into a dense table, its embeddings onto sparse ones.

    model       called as model(dense, slots), it returns logits [batch] or [batch, 1]; a method `losses(output, label)`
                or `loss(output, label)` replaces the default, the mean binary cross entropy (see losses.py)
    tables      how rows come and go, in tables of modules that do not say it themselves
    tiers       memory for the sparse tables and a folder for the rows beyond it; none: all rows are in memory
    num_shards  of the sparse tables; they work in parallel, and the results do not depend on their number
    num_classes of the labels, from 0 on; from three classes on the model returns a score for each, [batch, num_classes]
    num_threads among which the samples of a batch are divided, if the model lets them be (see pieces.py)
    connect     a client of servers that hold these tables; none: they are in this process
    staleness   by how many pushes rows on servers may be behind (see ps/cache.py), with `cache_bytes` for each table
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
        self.model = model.train()
        self.clock = 0
        self.samples = 0  # trained on so far
        self._num_classes = num_classes
        self._embeddings = [module for _, module in embeddings(model)]
        self.tables = model_tables(model, optimizers, tables=tables, tiers=tiers, seed=seed)
        if connect is not None and staleness and cache_bytes:
            _check_cache(cache_bytes, self.tables)
        values = _flat_parameters(model)
        self.client: JobClient = self.tables.in_process(num_shards) if connect is None else connect(self.tables)
        self._pushes: list[Future[None]] = []  # of the last step
        self._pulled: Future[FloatArray] | None = None  # the dense parameters for the next one
        try:
            self.client.fill_dense(DENSE, values).result()
            self._cache = None if connect is None else CachedClient(self.client, staleness, cache_bytes)
            self._values = np.require(self.client.pull_dense(DENSE).result(), requirements="W")
            self._grads = torch.zeros(len(values))
            view_parameters(model, torch.from_numpy(self._values), self._grads)
            rows: RowClient = self._cache or self.client
            bind_tables(model, rows)
            self._pieces = (
                Pieces(model, self._values, self._grads, rows, num_threads, num_classes) if num_threads > 1 else None
            )
        except BaseException:
            self.client.close()
            raise

    def prepare(self, batch: Batch) -> Batch:
        """Work out ahead of use what `step` will ask of the tables. Any thread may call it."""
        with self._own_code(batch):
            for module in self._embeddings:
                module.prepare(batch.slots)
        return batch

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

    def evaluate(self, batches: Iterable[Batch]) -> AnyMetrics:
        """Metrics of the model as it is; creates no rows."""
        metrics = make_metrics(self._num_classes)
        self._refresh()
        self.model.eval()
        try:
            with torch.no_grad():
                for batch in batches:
                    with self._own_code(batch):
                        output = self._forward(batch)
                    metrics.update(logits_of(output, self._num_classes), batch.label)
        finally:
            self.model.train()
        return metrics

    @property
    def num_rows(self) -> int:
        return sum(self.client.num_rows(table) for table in self._sparse)

    @property
    def table_bytes(self) -> int:
        return sum(self.client.num_bytes(table) for table in self._sparse)

    @property
    def counters(self) -> TableCounters:
        """Rows of all tables that came and went, and gradients that were refused."""
        return TableCounters.total(self.client.counters(table) for table in self._sparse)

    @property
    def tier_counts(self) -> TierCounts | None:
        """What the tables have in memory and on disk, and what has moved; None without tiers."""
        counts = [count for table in self._sparse if (count := self.client.tier_counts(table)) is not None]
        return TierCounts.total(counts) if counts else None

    @property
    def client_counts(self) -> ClientCounts | None:
        """What the talk with servers has come to; None without servers."""
        return self.client.counts if isinstance(self.client, RemoteClient) else None

    @property
    def cache_counts(self) -> CacheCounts | None:
        """Rows that came from copies of this worker, and rows that did not; None where no copies are kept."""
        return None if self._cache is None or self._cache.bound == 0 else self._cache.counts()

    def snapshot(self, samples: int, progress: dict[str, Any]) -> Snapshot:
        """Everything that a later `restore` needs to go on as if nothing had happened.

        Rows of tables with tiers are read when it is saved, or restored: do that before the next step.
        """
        self._refresh()
        self._settle()
        dense = {f"model/{name}": _to_numpy(tensor) for name, tensor in self.model.state_dict().items()}
        _, dense["optimizer/state"], _ = self.client.export_dense(DENSE)
        dense["random/torch"] = torch.get_rng_state().numpy()
        tables = {name: save_table(self.client, spec) for name, spec in self._sparse.items()}
        return Snapshot(clock=self.clock, samples=samples, dense=dense, tables=tables, progress=progress)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from `snapshot`, which the same model and optimizers made on any number of shards.

        The tables must be empty still, and torch's random state becomes that of the snapshot.
        """
        arrays = dict(snapshot.dense)
        state, random = arrays.pop("optimizer/state"), arrays.pop("random/torch")
        weights = {name.removeprefix("model/"): torch.from_numpy(array) for name, array in arrays.items()}
        if differing := set(self._sparse) ^ set(snapshot.tables):
            raise _another_model(f"only one of them has the tables {', '.join(sorted(differing))}")
        try:
            self.model.load_state_dict(weights)
            self.client.import_dense(DENSE, self._values, state, snapshot.clock)
            for name, table in snapshot.tables.items():
                load_table(self.client, name, table)
        except (RuntimeError, ValueError) as error:
            raise _another_model(str(error)) from error
        torch.set_rng_state(torch.from_numpy(random))
        self._pulled = None
        self.clock = snapshot.clock
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

    @property
    def _sparse(self) -> dict[str, TableSpec]:
        return {spec.name: spec for spec in self.tables.sparse}

    def _refresh(self) -> None:
        """Make the model's parameters the newest. In this process they are always."""
        pulled = (self._pulled or self.client.pull_dense(DENSE)).result()
        self._pulled = None
        if not np.may_share_memory(pulled, self._values):
            self._values[:] = pulled

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

    def _forward(self, batch: Batch) -> Tensor:
        output = self.model(torch.from_numpy(batch.dense), batch.slots)
        return checked_output(self.model, output, len(batch), self._num_classes)

    def _compute(self, batch: Batch, upcoming: Batch | None = None) -> Gradients:
        """The gradients of a batch; the dense ones are the trainer's own vector, to be zeroed once they were used.

        An error leaves no gradients behind.
        """
        self._refresh()  # [1]
        if upcoming is not None:
            self._prefetch(upcoming, iterations=1)
        try:
            return self._differentiate(batch)
        except BaseException:
            self._forget_gradients()
            raise

    def _differentiate(self, batch: Batch) -> Gradients:
        pieces = self._pieces if self._pieces is not None and self._pieces.fit(batch) else None
        with self._own_code(batch):
            loss, logits = pieces.run(batch) if pieces else self._run(batch)  # [2] [3]
        if not math.isfinite(loss):
            raise NotFinite(f"the loss of step {self.clock + 1} is {loss}. {self._first_bad_parameter()}")
        if pieces:
            rows = pieces.take_gradients()
        else:
            rows = [taken for module in self._embeddings for taken in module.take_gradients()]
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

    @contextmanager
    def _own_code(self, batch: Batch) -> Iterator[None]:
        """Say of an error in the model's own code that it is the model's, and when it happened."""
        try:
            yield
        except HeterpsError:
            raise
        except Exception as error:
            raise ModelError(
                f"{type(self.model).__name__} failed on a batch of {len(batch)} samples after {self.clock} steps: "
                f"{type(error).__name__}: {str(error).strip().rstrip('.')}. Check that it was made for the columns of "
                "the data; --debug shows the line."
            ) from error

    def _first_bad_parameter(self) -> str:
        for name, parameter in self.model.named_parameters():
            if not torch.isfinite(parameter).all():
                return f"The first parameter that is not finite is {name}: lower its learning rate."
        return "Every dense parameter is finite: look at the rows of the embeddings, the data and the loss itself."


def _check_cache(cache_bytes: int, tables: ModelTables) -> None:
    needed = max((least_bytes(spec.dim) for spec in tables.sparse), default=0)
    if cache_bytes < needed:
        raise ConfigError(
            f"servers.cache_bytes: {cache_bytes:,} bytes hold too few rows of the widest table: give at least "
            f"{needed:,}, or 0 for no copies"
        )


def _flat_parameters(model: nn.Module) -> FloatArray:
    """The model's trainable parameters side by side."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ModelError(
                f"parameter {name} is {parameter.dtype} on {parameter.device}; heterps trains float32 on cpu here."
            )
    return torch.cat([torch.zeros(0), *(parameter.detach().reshape(-1) for parameter in parameters.values())]).numpy()


def _another_model(why: str) -> ModelError:
    return ModelError(
        f"the checkpoint is of another model or optimizer: {why}. "
        "Train with the model that made it, or start a new run."
    )


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().clone().numpy()
