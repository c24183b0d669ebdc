"""Servers with a key, over tcp: who has it trains, looks and rebalances; nobody else does, and is told why in time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from server_commands import run_command, started, told_stats
from torch import nn

from heterps.config import Job, load_job
from heterps.data.batch import Batch
from heterps.data.keys import slots_from_ids
from heterps.errors import PeerLost
from heterps.launch.servers import first_roster
from heterps.model.build import build_model
from heterps.nn import DENSE, bind_tables, push_gradients
from heterps.ps.client.connect import connect
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.training.model.objectives import Objectives
from heterps.training.model.trainer import Trainer
from heterps.training.protocol.stage_tables import job_tables
from heterps.wire.keys import create_keys, load_keys


def free_addresses(num: int) -> list[str]:
    """Of ports that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(num)]
        return [f"tcp://127.0.0.1:{each.getsockname()[1]}" for each in sockets]


@pytest.fixture
def key(tmp_path: Path) -> str:
    return str(create_keys(tmp_path / "key"))


@pytest.fixture
def other_key(tmp_path: Path) -> str:
    return str(create_keys(tmp_path / "other"))


@pytest.fixture
def addresses(tiny_job: Path, key: str) -> Iterator[list[str]]:
    """Of three servers, of which two run."""
    wanted = free_addresses(3)
    lines = [f"server-{number} (shard {number} of 2) listens at {wanted[number]}" for number in range(2)]
    with (
        started(tiny_job, wanted[:2], lines[0], "--shard", "0", "--key", key),
        started(tiny_job, wanted[:2], lines[1], "--shard", "1", "--key", key),
    ):
        yield wanted


def make_model(job: Job) -> nn.Module:
    return build_model(job.model, job.data.columns, job.seed)


def make_batches(num: int = 8) -> list[Batch]:
    random = np.random.default_rng(0)
    batches = []
    for _ in range(num):
        ids, dense = random.integers(0, 20, (16, 2)), random.normal(size=(16, 2)).astype(np.float32)
        batches.append(Batch(dense, slots_from_ids(ids, ("s", "t")), (ids[:, 0] % 2).astype(np.float32)))
    return batches


def train(client: RemoteClient, model: nn.Module, batches: list[Batch]) -> list[float]:
    """Losses of steps with rows and weights on the servers."""
    parameters = list(model.parameters())
    losses = []
    for batch in batches:
        nn.utils.vector_to_parameters(torch.from_numpy(client.pull_dense(DENSE).result()), parameters)
        loss = Objectives().loss(
            model, model(torch.from_numpy(batch.dense), batch.slots), torch.from_numpy(batch.label)
        )
        loss.backward()
        push_gradients(model)
        client.push_dense(DENSE, torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None]).numpy())
        model.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_who_has_the_key_trains_looks_and_rebalances(tiny_job, addresses, key, capsys):
    job, batches = load_job(tiny_job), make_batches()
    with Trainer(make_model(job), job.optimizers, seed=job.seed) as trainer:
        expected = [trainer.step(trainer.prepare(batch))[0] for batch in batches]
    model, third = make_model(job), addresses[2]
    client = connect("worker", first_roster(addresses[:2]), job_tables(job), keys=load_keys(key))
    try:
        bind_tables(model, client)
        client.fill_dense(DENSE, nn.utils.parameters_to_vector(model.parameters()).detach().numpy())
        losses = train(client, model, batches[:4])
        line = f"server-2 (shard 2 of 3) listens at {third}"
        with started(tiny_job, [third], line, "--join", addresses[0], "--key", key):
            assert run_command(capsys, "rebalance", third, "--key", key)[0] == 0
            losses += train(client, model, batches[4:])
            assert told_stats(capsys, third, "--key", key)["requests"] > 0
            assert losses == expected
    finally:
        client.close()


def test_who_does_not_have_the_key_is_told_so_and_the_servers_go_on(tiny_job, addresses, key, other_key, capsys):
    for name in ("stats", "rebalance"):
        code, _, error = run_command(capsys, name, addresses[0])
        assert (code, "no key protects it: make one with `heterps keys create DIR`" in error) == (2, True)
        code, _, error = run_command(capsys, name, addresses[0], "--key", other_key)
        assert code != 0
        assert "it refused the connection: do both hold the same key file?" in error
    tables, roster = job_tables(load_job(tiny_job)), first_roster(addresses[:2])
    with pytest.raises(
        PeerLost, match=r"to server-0 at tcp://.*: it refused the connection: do both hold the same key"
    ):
        connect("worker", roster, tables, keys=load_keys(other_key), options=Options(deadline_s=3600.0))
    client = connect("worker", roster, tables, keys=load_keys(key))
    assert client.num_rows(tables.sparse[0].name) == 0
    client.close()
    assert told_stats(capsys, addresses[0], "--key", key)["workers"] == 1
