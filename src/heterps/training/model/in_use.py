"""A model in use: what it says of samples, and how good that is. It learns nothing and creates no rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from heterps.arrays import FloatArray
from heterps.checkpoint import Snapshot, TableStream, load
from heterps.checkpoint.saved_rows import SavedRows, SavedTable
from heterps.config import Job
from heterps.data.batch import Batch
from heterps.lookups import prepared
from heterps.model.build import build_model
from heterps.nn import bind_tables, embeddings, model_tables
from heterps.training.metrics.metrics import Metrics
from heterps.training.model.errors import another_model, own_code
from heterps.training.model.objectives import Objectives, Output, is_mean_over_samples


class ModelInUse:
    """`model`, whose embeddings have their rows, and what its outputs are for."""

    def __init__(self, model: nn.Module, objectives: Objectives) -> None:
        self.model = model.train()
        self.clock = 0  # steps so far
        self._objectives = objectives
        self._embeddings = [module for _, module in embeddings(model)]

    def prepare(self, batch: Batch) -> Batch:
        """Work out ahead of use what a pass over `batch` will ask of the tables. Any thread may call it."""
        slots = prepared(batch.slots)
        with own_code(self.model, self._when(batch)):
            for module in self._embeddings:
                module.prepare(slots)
        return replace(batch, slots=slots)

    def refresh(self) -> None:
        """Load the newest parameters into the model."""

    def evaluate(self, batches: Iterable[Batch]) -> Metrics:
        """Metrics of the model as it is; creates no rows."""
        metrics = self._objectives.metrics()
        self.refresh()
        self.model.eval()
        try:
            with torch.no_grad():
                for batch in batches:
                    with own_code(self.model, self._when(batch)):
                        scores = self._scores(batch)
                    metrics.update(scores.numpy(), batch.label, batch.users)
        finally:
            self.model.train()
        return metrics

    def not_finite(self, batch: Batch) -> dict[int, str]:
        """The samples of a batch for which the model as it is gives no finite output or loss, and what it gives.

        It creates no rows. A loss of whole batches says nothing of single samples: then outputs alone count.
        """
        self.refresh()
        self.model.eval()
        found: dict[int, str] = {}
        try:
            with torch.no_grad(), own_code(self.model, self._when(batch)):
                output, label = self._output(batch), torch.from_numpy(batch.label)
                for number, scores in enumerate(self._objectives.scores(output).reshape(len(batch), -1)):
                    one = slice(number, number + 1)
                    if not torch.isfinite(scores).all():
                        found[number] = f"the output is {float(scores[~torch.isfinite(scores)][0])}"
                    elif is_mean_over_samples(self.model):
                        own = output[one] if isinstance(output, Tensor) else {n: v[one] for n, v in output.items()}
                        loss = float(self._objectives.loss(self.model, own, label[one], len(batch)))
                        found |= {} if math.isfinite(loss) else {number: f"the loss is {loss}"}
        finally:
            self.model.train()
        return found

    def predict(self, batch: Batch) -> dict[str, FloatArray]:
        """What the model predicts for each sample, by the name of a column (see Objectives.predictions)."""
        self.model.eval()
        with torch.no_grad(), own_code(self.model, self._when(batch)):
            found = self._objectives.predictions(self.model, self._output(batch))
        return {name: values.numpy() for name, values in found.items()}

    def _scores(self, batch: Batch) -> Tensor:
        return self._objectives.scores(self._output(batch))

    def _output(self, batch: Batch) -> Output:
        output = self.model(torch.from_numpy(batch.dense), prepared(batch.slots))
        return self._objectives.checked(self.model, output, len(batch))

    def _when(self, batch: Batch) -> str:
        return f"on a batch of {len(batch)} samples after {self.clock} steps"


class SavedModel(ModelInUse):
    """The model of a checkpoint. Its rows stay in the checkpoint's files, so it needs no servers and little memory."""

    def __init__(self, job: Job, checkpoint: Path) -> None:
        snapshot = load(checkpoint)
        model = build_model(job.model, job.data.columns, job.seed)
        super().__init__(model, Objectives(job.data.columns))
        self.clock, self.samples = snapshot.clock, snapshot.samples
        load_weights(model, snapshot)
        tables = {}
        for spec in model_tables(model, job.optimizers, tables=job.tables, seed=job.seed).sparse:
            table = snapshot.tables.get(spec.name)
            if table is None or table.widths[0] != spec.dim:
                raise another_model(f"it has no table {spec.name} with rows of {spec.dim} values")
            assert isinstance(table, TableStream), "loaded tables are in files"
            tables[spec.name] = SavedTable(spec, table.by_key())
        self.rows = SavedRows(tables)
        bind_tables(model, self.rows)

    def copy(self) -> ModelInUse:
        """Another model of the same weights and rows, for another thread."""
        model = copy.deepcopy(self.model)
        bind_tables(model, self.rows)
        return ModelInUse(model, self._objectives)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.rows.close()


def load_weights(model: nn.Module, snapshot: Snapshot) -> None:
    """Give a model the dense weights and buffers of a snapshot."""
    arrays = {name: array for name, array in snapshot.dense.items() if name.startswith("model/")}
    weights = {name.removeprefix("model/"): torch.from_numpy(array) for name, array in arrays.items()}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise another_model(str(error)) from error
