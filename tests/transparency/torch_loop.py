"""A training loop as one writes it in plain PyTorch, on the data and the first parameters of a job.

job --> inline run -----------> snapshot      equal: the losses of all steps, every parameter, every row
    --> loop(job, optimize) --> Loop
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional
from transparent import Trained

from heterps.config import Job
from heterps.data.batch import Slots
from heterps.data.keys import slots_from_ids
from heterps.model import build_model
from heterps.nn import model_tables


class PlainEmbedding(nn.Module):
    """What a SparseEmbedding does, on torch's own embedding: a row for each key of the data."""

    def __init__(self, keys: np.ndarray, rows: np.ndarray) -> None:
        super().__init__()
        self.keys = keys
        self.table = nn.Embedding(*rows.shape, _weight=torch.from_numpy(rows.copy()))

    def forward(self, slots: Slots) -> Tensor:
        where = torch.from_numpy(np.searchsorted(self.keys, slots.keys))
        return self.table(where.reshape(len(slots), -1))


@dataclasses.dataclass
class Loop:
    """What came of it."""

    losses: list[float]
    parameters: dict[str, np.ndarray]
    keys: np.ndarray
    rows: np.ndarray


Step = Callable[[nn.Module, int], None]
"""Makes the optimizer's step of a model whose gradients are there, after so many samples."""


def loop(job: Job, step: Step) -> Loop:
    """Train the model of a job in plain torch; its data must not be shuffled. `step` is made anew by the caller."""
    assert not job.data.shuffle
    columns = job.data.columns
    table = pq.read_table(job.data.train)
    dense = np.stack([table[name].to_numpy() for name in columns.dense], axis=1).astype(np.float32)
    ids = np.stack([table[name].to_numpy() for name in columns.slots], axis=1)
    label = table[columns.label].to_numpy().astype(np.float32)
    model = build_model(job.model, columns, job.seed).train()
    (spec,) = model_tables(model, job.optimizers, tables=job.tables, seed=job.seed).sparse
    keys = np.unique(slots_from_ids(ids, columns.slots).keys)
    model.rows = PlainEmbedding(keys, spec.make_shard().pull(keys, create=False))
    losses, size = [], job.data.batch_size
    for _ in range(job.data.epochs):
        for first in range(0, len(label), size):
            part = slice(first, first + size)
            with torch.autocast("cpu", torch.bfloat16, enabled=job.precision == "bf16"):
                logits = model(torch.from_numpy(dense[part]), slots_from_ids(ids[part], columns.slots))
            loss = functional.binary_cross_entropy_with_logits(logits[:, 0].float(), torch.from_numpy(label[part]))
            model.zero_grad()
            loss.backward()
            step(model, len(losses) * size)
            losses.append(loss.item())
    named = {name: p.detach().numpy() for name, p in model.named_parameters() if not name.startswith("rows.")}
    return Loop(losses, named, keys, model.rows.table.weight.detach().numpy())


def assert_equals_loop(trained: Trained, expected: Loop, rtol: float = 1e-5) -> None:
    np.testing.assert_allclose(trained.losses, expected.losses, rtol=rtol, err_msg="losses of steps")
    for name, values in expected.parameters.items():
        np.testing.assert_allclose(trained.snapshot.dense[f"model/{name}"], values, rtol, rtol, err_msg=name)
    rows = trained.snapshot.tables["rows"].whole()
    order = np.argsort(rows.keys)
    np.testing.assert_array_equal(rows.keys[order], expected.keys)
    np.testing.assert_allclose(rows.values[order], expected.rows, rtol, rtol, err_msg="rows")
