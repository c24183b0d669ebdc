"""A model whose tables and weights are on servers trains to the losses of one whose are here, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from servers import remote_client
from torch import Tensor, nn

from heterps.config import Adagrad, Adam, Optimizers, Schema
from heterps.data.batch import Batch
from heterps.data.keys import slots_from_ids
from heterps.model.zoo import ZOO
from heterps.nn import DENSE, bind_tables, embeddings, model_tables
from heterps.ps.remote import RemoteClient
from heterps.training.losses import batch_loss
from heterps.training.pieces import view_parameters
from heterps.training.trainer import Trainer

SCHEMA = Schema(dense=("a", "b", "c"), slots=("s", "t", "u", "v"))
OPTIMIZERS = Optimizers(sparse=Adagrad(lr=0.05), dense=Adam(lr=0.01))


def make_batches() -> list[Batch]:
    random = np.random.default_rng(0)
    batches = []
    for _ in range(12):
        ids = random.integers(0, 40, (32, 4))
        dense = random.normal(size=(32, 3)).astype(np.float32)
        label = ((ids[:, 0] % 3 + dense[:, 0]) > 1).astype(np.float32)
        batches.append(Batch(dense, slots_from_ids(ids, SCHEMA.slots), label))
    return batches


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return ZOO["ctr_dnn"](SCHEMA, embedding_dim=4, hidden=(16, 8))


def remote_losses(model: nn.Module, client: RemoteClient, values: Tensor, grads: Tensor) -> list[float]:
    losses = []
    for batch in make_batches():
        values[:] = torch.from_numpy(client.pull_dense(DENSE).result())
        loss = batch_loss(model, model(torch.from_numpy(batch.dense), batch.slots), torch.from_numpy(batch.label))
        loss.backward()
        for _, module in embeddings(model):
            module.push()
        client.push_dense(DENSE, grads.numpy())
        grads.zero_()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("num_servers", [1, 3])
def test_training_on_servers_equals_training_here(num_servers: int) -> None:
    with Trainer(make_model(), OPTIMIZERS) as trainer:
        expected = [trainer.step(trainer.prepare(batch))[0] for batch in make_batches()]
    model = make_model()
    values = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    grads = torch.zeros(len(values))
    view_parameters(model, values, grads)
    with remote_client(num_servers, model_tables(model, OPTIMIZERS)) as client:
        client.fill_dense(DENSE, values.numpy())
        bind_tables(model, client)
        assert remote_losses(model, client, values, grads) == expected
