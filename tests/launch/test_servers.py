"""Servers as processes: real sockets, a real end, and what is in the tables is what tables in this process have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import heterps
from server_commands import run_command, started, told_stats

from heterps.config import load_job
from heterps.errors import PeerLost
from heterps.launch.servers import first_roster
from heterps.model.build import build_model
from heterps.nn import DENSE
from heterps.ps.client.connect import connect
from heterps.ps.client.local import LocalClient
from heterps.ps.client.session import Options
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.table.dense import DenseTable
from heterps.training.model.trainer import Trainer
from heterps.training.protocol.stage_tables import job_tables


@pytest.fixture
def addresses(tiny_job: Path) -> Iterator[list[str]]:
    """Of two servers that run."""
    wanted = [f"ipc://{tiny_job.parent}/s{number}" for number in range(2)]
    with (
        started(tiny_job, wanted, f"server-0 (shard 0 of 2) listens at {wanted[0]}", "--shard", "0"),
        started(tiny_job, wanted, f"server-1 (shard 1 of 2) listens at {wanted[1]}", "--shard", "1"),
    ):
        yield wanted
    assert not list(tiny_job.parent.glob("s?"))  # the sockets are gone


SAID = """
optimizers:
  sparse: {kind: adam, lr: 0.01}
  dense: {kind: momentum, lr: 0.1}
  schedule: {kind: linear, warmup: 100, until: 1000}
tables:
  init: {kind: normal, std: 0.2}
  admission: {kind: sightings, num: 2}
seed: 7
"""


@pytest.mark.parametrize("said", ["", SAID, "tiers: {memory_bytes: 1000000}", "tables: {eviction: {max_age: 5}}"])
def test_servers_hold_the_tables_that_the_trainer_of_the_job_makes(said, tiny_job):
    tiny_job.write_text(tiny_job.read_text() + said)
    job = load_job(tiny_job)
    model = build_model(job.model, job.data.columns, job.seed)
    tables = job_tables(job)
    with Trainer(model, job.optimizers, tables=job.tables, tiers=job.tiers, seed=job.seed) as trainer:
        assert tables == trainer.tables


def test_two_processes_hold_a_job_and_tell_about_it(tiny_job, addresses, capsys):
    tables = job_tables(load_job(tiny_job))
    name, dim, size = tables.sparse[0].name, tables.sparse[0].dim, tables.dense[0].size
    local = LocalClient(tables.sparse, {DENSE: DenseTable(size, tables.dense[0].optimizer)}, 2)
    remote = connect("worker", first_roster(addresses), tables)
    rng = np.random.default_rng(0)
    for _ in range(5):
        lookup = make_lookup(rng.integers(0, 100, 64), 2)
        grads, dense = rng.normal(size=(64, dim)).astype(np.float32), rng.normal(size=size).astype(np.float32)
        seen = [(c.pull(name, lookup).result(), c.pull_dense(DENSE).result()) for c in (local, remote)]
        np.testing.assert_array_equal(*(rows for rows, _ in seen))
        np.testing.assert_array_equal(*(values for _, values in seen))
        for client in (local, remote):
            client.push(name, lookup, grads)
            client.push_dense(DENSE, dense)
    assert remote.num_rows(name) == local.num_rows(name)
    remote.close()
    stats = [told_stats(capsys, address) for address in addresses]
    assert [figures["shard"] for figures in stats] == [0, 1]
    assert sum(figures["tables"][name]["rows"] for figures in stats) == local.num_rows(name)
    assert all(figures["tables"][name]["pushes"] == 5 for figures in stats)
    assert all(figures["latency_s"]["p50"] > 0 for figures in stats)
    assert "server-0  shard 0 of 2, epoch 1, 1 worker" in run_command(capsys, "stats", addresses[0])[1]


def test_a_third_process_joins_and_leaves_while_a_worker_trains(tiny_job, addresses, capsys):
    tables = job_tables(load_job(tiny_job))
    name, dim, size = tables.sparse[0].name, tables.sparse[0].dim, tables.dense[0].size
    local = LocalClient(tables.sparse, {DENSE: DenseTable(size, tables.dense[0].optimizer)})
    remote = connect("worker", first_roster(addresses), tables, options=Options(first_retry_s=0.1))
    rng = np.random.default_rng(0)

    def train() -> None:
        for _ in range(5):
            keys, grads = rng.integers(0, 500, 64), rng.normal(size=(64, dim)).astype(np.float32)
            dense = rng.normal(size=size).astype(np.float32)
            for client in (local, remote):
                lookup = make_lookup(keys, client.num_shards)
                client.pull(name, lookup)
                client.push(name, lookup, grads)
                client.push_dense(DENSE, dense)

    train()
    third = f"ipc://{tiny_job.parent}/s2"
    said = json.dumps({"server": "server-2", "shard": 2, "shards": 3, "address": third})
    with started(tiny_job, [third], said, "--json", "--join", addresses[0]):
        for words, epoch, num_servers in (([third], 2, 3), ([addresses[0], "--drop-last"], 3, 2)):
            train()
            code, out, _ = run_command(capsys, "rebalance", *words, "--json")
            assert code == 0
            told = json.loads(out)
            assert (told["epoch"], told["shards"]) == (epoch, num_servers)
            assert told["moved_bytes"] > 0
            train()
            lookup, other = make_lookup(np.arange(500)), make_lookup(np.arange(500), remote.num_shards)
            expected = local.pull(name, lookup).result()[lookup.inverse]
            np.testing.assert_array_equal(remote.pull(name, other).result()[other.inverse], expected)
            assert (remote.num_shards, remote.num_rows(name)) == (num_servers, local.num_rows(name))
            for got, wanted in zip(remote.export_dense(DENSE), local.export_dense(DENSE), strict=True):
                np.testing.assert_array_equal(got, wanted)
            assert (told_stats(capsys, third)["tables"][name]["rows"] > 0) == (num_servers == 3)
        remote.close()


def test_a_server_that_does_not_run_is_named(tmp_path):
    roster = first_roster([f"ipc://{tmp_path}/nobody"])
    with pytest.raises(PeerLost, match=r"for a connection to server-0 at ipc://.*nobody: does its process run\?"):
        connect("worker", roster, TableSpecs(()), options=Options(deadline_s=0.1))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--address", "ipc:///tmp/a", "--shard", "1"], "--shard 1: the last of 1 addresses is shard 0"),
        (["--address", "ipc:///tmp/a", "--address", "ipc:///tmp/a"], "every server needs an address of its own"),
        (
            ["--address", "ipc:///tmp/a", "--shard", "1", "--join", "ipc:///tmp/b"],
            "and no --shard; it becomes the last",
        ),
        (["--address", "tcp://0.0.0.0:5555"], "can be reached from other machines, and no key protects it"),
        (["--address", "tcp://127.0.0.1:5555"], "make one with `heterps keys create DIR`"),
        (["--address", "ipc:///tmp/a"], "other users can write to /tmp, and no key protects the socket"),
    ],
)
def test_addresses_that_cannot_be_are_refused(words, text, tiny_job, capsys):
    code, _, error = run_command(capsys, "start", str(tiny_job), *words)
    assert code == 2
    assert text in error


PLAN = {
    "version": 1,
    "method": "mine",
    "stages": [
        {"first": 0, "last": 1, "resource": "cpu", "count": 1},
        {"first": 2, "last": 4, "resource": "big", "count": 1},
    ],
    "servers": {"resource": "cpu", "count": 1},
    "throughput": 0,
    "hours": 0,
    "usd": 0,
    "bottleneck": "not predicted",
}
TWO_RESOURCES = """
launcher: local
cluster:
  resources:
    cpu: {device: cpu, usd_per_hour: 0.04, limit: 9}
    big: {device: cpu, usd_per_hour: 1.0, limit: 9}
  server_resource: cpu
"""


def test_servers_that_run_already_serve_a_plan_of_two_stages_if_they_are_given_it(tiny_job: Path) -> None:
    tiny_job.write_text(tiny_job.read_text() + TWO_RESOURCES)
    plan = tiny_job.parent / "plan.json"
    plan.write_text(json.dumps(PLAN))

    def train(run: str, *servers: str) -> str:
        with tiny_job.open("a") as file:
            file.write(f"servers: {{addresses: {json.dumps(servers)}}}\n" if servers else "")
        done = heterps("train", tiny_job, "--plan", plan, "--run", run, cwd=tiny_job.parent)
        return "" if done.returncode == 0 else done.stderr

    def result(run: str) -> tuple[int, float]:
        summary = json.loads((tiny_job.parent / run / "summary.json").read_text())
        return summary["samples"], summary["auc"]

    assert not train("own")
    text = tiny_job.read_text()
    for number, options in enumerate([(), ("--plan", str(plan))]):
        address = f"ipc://{tiny_job.parent}/p{number}"
        tiny_job.write_text(text)
        with started(tiny_job, [address], f"server-0 (shard 0 of 1) listens at {address}", *options):
            said = " ".join(train(f"at-{number}", address).split())
        assert ("by the same `--plan`" in said) == (not options), said
    assert result("at-1") == result("own")
