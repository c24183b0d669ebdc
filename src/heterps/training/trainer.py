"""Trainer: a model, its tables and one step of training, for heterps' own loop and for yours.

    batch --prepare (ahead of use, any thread)--> lookups
          --step--> [1] forward: pull rows, run the layers    [2] loss and backward
                    [3] push the row gradients                [4] push the dense gradients

The dense parameters of the model are views of one flat vector, the dense table; their gradients are views of another.
So pulling and pushing them is one message for a whole model, and in this process not even a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.checkpoint import Snapshot
from heterps.config import Optimizers, Tables, Tiers
from heterps.data.batch import Batch
from heterps.errors import HeterpsError, ModelError, NotFinite
from heterps.nn import SparseEmbedding, embeddings
from heterps.ps.client import LocalClient, TableSpec
from heterps.ps.dense import DenseTable
from heterps.ps.table.tiers import TierCounts
from heterps.training.losses import batch_loss, checked_output, logits_of
from heterps.training.metrics import Metrics
from heterps.training.pieces import Pieces, view_parameters
from heterps.training.table_snapshots import load_table, save_table

DENSE = "dense"


class Trainer:
    """Trains `model` in this process. The model's parameters move into a dense table, its embeddings onto sparse ones.

    model       called as model(dense, slots), it returns logits [batch] or [batch, 1]; a method `losses(output, label)`
                or `loss(output, label)` replaces the default, the mean binary cross entropy (see losses.py)
    tables      how rows come and go, in tables of modules that do not say it themselves
    tiers       memory for the sparse tables and a folder for the rows beyond it; none: all rows are in memory
    num_shards  of the sparse tables; they work in parallel, and the results do not depend on their number
    num_threads among which the samples of a batch are divided, if the model lets them be (see pieces.py)
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
    ) -> None:
        self.model = model.train()
        self.clock = 0
        self.samples = 0  # trained on so far
        self._dense, self._grads = _flatten(model, optimizers)
        self._embeddings: list[SparseEmbedding] = []
        self._specs: dict[str, TableSpec] = {}
        bound = []
        for name, module in embeddings(model):
            specs = module.table_specs(name, optimizers.sparse, seed, schedule=optimizers.schedule, tables=tables)
            self._specs |= {spec.name: spec for spec in specs}
            self._embeddings.append(module)
            bound.append([spec.name for spec in specs])
        if tiers is not None:
            whole = sum(spec.dim for spec in self._specs.values())
            self._specs = {name: replace(s, tiers=tiers.share(s.dim, whole)) for name, s in self._specs.items()}
        self.client = LocalClient(list(self._specs.values()), {DENSE: self._dense}, num_shards)
        for module, names in zip(self._embeddings, bound, strict=True):
            module.bind(self.client, names)
        self._pieces = Pieces(model, self._dense, self._grads, self.client, num_threads) if num_threads > 1 else None

    def prepare(self, batch: Batch) -> Batch:
        """Work out ahead of use what `step` will ask of the tables. Any thread may call it."""
        with self._own_code(batch):
            for module in self._embeddings:
                module.prepare(batch.slots)
        return batch

    def step(self, batch: Batch) -> tuple[float, NDArray[np.float32]]:
        """One optimizer step on `batch`; its mean loss and logits, as they were before the step."""
        pieces = self._pieces if self._pieces is not None and self._pieces.fit(batch) else None
        with self._own_code(batch):
            value, logits = pieces.run(batch) if pieces else self._run(batch)  # [1] [2]
        if not math.isfinite(value):
            raise NotFinite(f"the loss of step {self.clock + 1} is {value}. {self._first_bad_parameter()}")
        self.client.samples = self.samples
        pushes = pieces.push() if pieces else [push for module in self._embeddings for push in module.push()]  # [3]
        pushes.append(self.client.push_dense(DENSE, self._grads.numpy()))  # [4]
        for push in pushes:
            push.result()
        self._grads.zero_()
        self.clock += 1
        self.samples += len(batch)
        return value, logits

    def evaluate(self, batches: Iterable[Batch]) -> Metrics:
        """Metrics of the model as it is; creates no rows."""
        metrics = Metrics()
        self.model.eval()
        try:
            with torch.no_grad():
                for batch in batches:
                    with self._own_code(batch):
                        output = self._forward(batch)
                    metrics.update(logits_of(output), batch.label)
        finally:
            self.model.train()
        return metrics

    @property
    def num_rows(self) -> int:
        return sum(self.client.num_rows(table) for table in self._specs)

    @property
    def table_bytes(self) -> int:
        return sum(self.client.num_bytes(table) for table in self._specs)

    @property
    def tier_counts(self) -> TierCounts | None:
        """What the tables have in memory and on disk, and what has moved; None without tiers."""
        counts = [count for table in self._specs if (count := self.client.tier_counts(table)) is not None]
        return TierCounts.total(counts) if counts else None

    def snapshot(self, samples: int, progress: dict[str, Any]) -> Snapshot:
        """Everything that a later `restore` needs to go on as if nothing had happened.

        Rows of tables with tiers are read when it is saved, or restored: do that before the next step.
        """
        dense = {f"model/{name}": _to_numpy(tensor) for name, tensor in self.model.state_dict().items()}
        dense["optimizer/state"] = self._dense.state.copy()
        dense["random/torch"] = torch.get_rng_state().numpy()
        tables = {name: save_table(self.client, spec) for name, spec in self._specs.items()}
        return Snapshot(clock=self.clock, samples=samples, dense=dense, tables=tables, progress=progress)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from `snapshot`, which the same model and optimizers made on any number of shards.

        The tables must be empty still, and torch's random state becomes that of the snapshot.
        """
        arrays = dict(snapshot.dense)
        state, random = arrays.pop("optimizer/state"), arrays.pop("random/torch")
        weights = {name.removeprefix("model/"): torch.from_numpy(array) for name, array in arrays.items()}
        if differing := set(self._specs) ^ set(snapshot.tables):
            raise _another_model(f"only one of them has the tables {', '.join(sorted(differing))}")
        try:
            self.model.load_state_dict(weights)
            self._dense.restore(state, snapshot.clock)
            for name, table in snapshot.tables.items():
                load_table(self.client, name, table)
        except (RuntimeError, ValueError) as error:
            raise _another_model(str(error)) from error
        torch.set_rng_state(torch.from_numpy(random))
        self.clock = snapshot.clock
        self.samples = snapshot.samples

    def close(self) -> None:
        self.client.close()
        if self._pieces is not None:
            self._pieces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, batch: Batch) -> tuple[float, NDArray[np.float32]]:
        """Forward and backward on the whole batch; its mean loss and logits."""
        output = self._forward(batch)
        loss = batch_loss(self.model, output, torch.from_numpy(batch.label))
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), logits_of(output)

    def _forward(self, batch: Batch) -> Tensor:
        output = self.model(torch.from_numpy(batch.dense), batch.slots)
        return checked_output(self.model, output, len(batch))

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


def _flatten(model: nn.Module, optimizers: Optimizers) -> tuple[DenseTable, Tensor]:
    """Move the model's trainable parameters into a dense table; they and their gradients become views."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ModelError(
                f"parameter {name} is {parameter.dtype} on {parameter.device}; heterps trains float32 on cpu here."
            )
    table = DenseTable(sum(p.numel() for p in parameters.values()), optimizers.dense, optimizers.schedule)
    grads = torch.zeros(table.size)
    values = torch.from_numpy(table.values)
    values[:] = torch.cat([torch.zeros(0), *(parameter.detach().reshape(-1) for parameter in parameters.values())])
    view_parameters(model, values, grads)
    return table, grads


def _another_model(why: str) -> ModelError:
    return ModelError(
        f"the checkpoint is of another model or optimizer: {why}. "
        "Train with the model that made it, or start a new run."
    )


def _to_numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().clone().numpy()
