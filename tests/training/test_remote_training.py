"""A model whose tables and weights are on servers trains to the losses of one whose are here, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from servers import make_roster, threaded_servers
from torch import nn

from heterps.checkpoint import Snapshot
from heterps.config import Adagrad, Adam, AfterSightings, Eviction, Optimizers, Schema, Tables, WithProbability
from heterps.data.batch import Batch
from heterps.data.keys import slots_from_ids
from heterps.errors import ConfigError, ModelError, PeerLost
from heterps.model.zoo import ZOO
from heterps.nn import model_tables
from heterps.ps.client.interface import JobClient
from heterps.ps.client.rebalance import run_rebalance
from heterps.ps.client.remote import RemoteClient
from heterps.ps.protocol.roster import Seat
from heterps.ps.protocol.specs import TableSpecs
from heterps.ps.server.serve import serve
from heterps.ps.server.server import Server
from heterps.training.model.trainer import Trainer
from heterps.wire import MemoryNetwork

SCHEMA = Schema(dense=("a", "b", "c"), slots=("s", "t", "u", "v"))
OPTIMIZERS = Optimizers(sparse=Adagrad(lr=0.05), dense=Adam(lr=0.01))
SAMPLES = 160


def make_batches(num: int = 12) -> list[Batch]:
    random = np.random.default_rng(0)
    batches = []
    for _ in range(num):
        ids = random.integers(0, 40, (SAMPLES, 4))
        dense = random.normal(size=(SAMPLES, 3)).astype(np.float32)
        label = ((ids[:, 0] % 3 + dense[:, 0]) > 1).astype(np.float32)
        batches.append(Batch(dense, slots_from_ids(ids, SCHEMA.slots), label))
    return batches


def make_model(factory: str = "ctr_dnn") -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return ZOO[factory](SCHEMA, embedding_dim=4, hidden=(16, 8))


@contextmanager
def servers(num: int) -> Iterator[Callable[[TableSpecs], JobClient]]:
    """A way to `num` servers on threads, which are made for the tables of the first who takes it."""
    network, roster = MemoryNetwork(), make_roster(num)
    running: list[object] = []

    def connect(tables: TableSpecs) -> JobClient:
        context = threaded_servers(roster, tables, network)
        context.__enter__()
        running.append(context)
        return RemoteClient("worker", network.channel("worker"), roster, tables)

    try:
        yield connect
    finally:
        for context in running:
            context.__exit__(None, None, None)  # type: ignore[attr-defined]


def train(trainer: Trainer, batches: list[Batch]) -> list[float]:
    batches = [trainer.prepare(batch) for batch in batches]
    return [trainer.step(batch, ahead)[0] for batch, ahead in zip(batches, [*batches[1:], None], strict=True)]


def state(snapshot: Snapshot) -> dict[str, np.ndarray]:
    """All arrays of a snapshot, rows by key."""
    arrays = dict(snapshot.dense)
    for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
        order = np.argsort(table.keys)
        arrays |= {f"{name}/{field}": getattr(table, field)[order] for field in ("keys", "values", "state", "uses")}
    return arrays


def assert_equal(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("num_servers", [1, 3])
@pytest.mark.parametrize("factory", ["ctr_dnn", "deepfm"])
def test_training_on_servers_equals_training_here(factory: str, num_servers: int, num_threads: int) -> None:
    with Trainer(make_model(factory), OPTIMIZERS, num_threads=num_threads) as here:
        expected = train(here, make_batches())
        wanted, metrics = here.snapshot(0, {}), here.evaluate(make_batches(2))
    with (
        servers(num_servers) as connect,
        Trainer(make_model(factory), OPTIMIZERS, num_threads=num_threads, connect=connect) as there,
    ):
        assert train(there, make_batches()) == expected
        assert_equal(state(there.snapshot(0, {})), state(wanted))
        assert there.evaluate(make_batches(2)).loss == metrics.loss
        assert there.num_rows == here.num_rows
        assert there.cache_counts is None, "with no staleness allowed there are no copies"


def test_a_snapshot_moves_between_here_and_servers_of_any_number() -> None:
    batches = make_batches()
    with Trainer(make_model(), OPTIMIZERS) as whole:
        expected = train(whole, batches)
    with servers(2) as connect, Trainer(make_model(), OPTIMIZERS, connect=connect) as first:
        losses = train(first, batches[:5])
        snapshot = first.snapshot(5 * SAMPLES, {})
    with servers(3) as connect, Trainer(make_model(), OPTIMIZERS, connect=connect) as second:
        second.restore(snapshot)
        losses += train(second, batches[5:9])
        snapshot = second.snapshot(9 * SAMPLES, {})
    with Trainer(make_model(), OPTIMIZERS, num_shards=2) as last:
        last.restore(snapshot)
        losses += train(last, batches[9:])
    assert losses == expected


@pytest.mark.parametrize(
    "kept",
    [
        Tables(admission=AfterSightings(num=2, sketch_bytes=1024)),
        Tables(admission=WithProbability(p=0.5)),
        Tables(eviction=Eviction(max_age=3)),
        Tables(admission=AfterSightings(num=2, sketch_bytes=1024), eviction=Eviction(min_uses=1.5, half_life=2)),
    ],
    ids=["sightings", "chance", "age", "both"],
)
def test_what_tables_know_besides_their_rows_goes_with_a_snapshot_too(kept: Tables) -> None:
    batches = make_batches()
    with servers(2) as connect, Trainer(make_model(), OPTIMIZERS, tables=kept, connect=connect) as whole:
        expected = train(whole, batches)
    with servers(2) as connect, Trainer(make_model(), OPTIMIZERS, tables=kept, connect=connect) as first:
        losses = train(first, batches[:6])
        snapshot = first.snapshot(6 * SAMPLES, {})
    with servers(2) as connect, Trainer(make_model(), OPTIMIZERS, tables=kept, connect=connect) as second:
        second.restore(snapshot)
        assert losses + train(second, batches[6:]) == expected


def test_with_staleness_training_differs_a_little_and_copies_are_used() -> None:
    with Trainer(make_model(), OPTIMIZERS) as here:
        exact = train(here, make_batches())
    with servers(2) as connect, Trainer(make_model(), OPTIMIZERS, connect=connect, staleness=3) as there:
        stale = train(there, make_batches())
        counts = there.cache_counts
    assert counts is not None
    assert counts.hit_rate is not None
    assert counts.hit_rate > 0.5
    assert stale[0] == exact[0]
    assert stale != exact
    np.testing.assert_allclose(stale, exact, rtol=0.1)


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_a_copy_is_used_for_as_many_steps_as_may_be_missed_and_no_longer(staleness: int) -> None:
    """Steps on one batch: its rows are pulled, used as they are while `staleness` steps are made, and pulled again."""
    (batch,), pulled = make_batches(1), []
    with servers(2) as connect, Trainer(make_model(), OPTIMIZERS, connect=connect, staleness=staleness) as trainer:
        for _ in range(2 * (staleness + 1) + 1):
            before = trainer.cache_counts.num_misses
            trainer.step(batch)
            pulled.append(trainer.cache_counts.num_misses - before)
    num_rows = pulled[0]
    assert num_rows > 50
    assert pulled == [num_rows, *[0] * staleness] * 2 + [num_rows]


def test_a_checkpoint_of_another_model_is_refused_by_servers_too() -> None:
    with Trainer(make_model("deepfm"), OPTIMIZERS) as other:
        snapshot = other.snapshot(0, {})
    with (
        servers(1) as connect,
        Trainer(make_model(), OPTIMIZERS, connect=connect) as trainer,
        pytest.raises(ModelError, match="another model"),
    ):
        trainer.restore(snapshot)


def test_the_last_step_is_on_the_servers_when_the_trainer_has_ended() -> None:
    network, roster, batches = MemoryNetwork(), make_roster(2), make_batches(3)
    tables = model_tables(make_model(), OPTIMIZERS)
    with threaded_servers(roster, tables, network):
        with Trainer(
            make_model(),
            OPTIMIZERS,
            connect=lambda _: RemoteClient("worker", network.channel("worker"), roster, tables),
        ) as trainer:
            for batch in batches:
                trainer.step(batch)
        other = RemoteClient("other", network.channel("other"), roster, tables)
        assert other.num_pushes("embedding") == len(batches)
        other.close()


def test_a_trainer_that_servers_refuse_leaves_no_channel() -> None:
    network, roster = MemoryNetwork(), make_roster(1)
    others = model_tables(make_model(), Optimizers())
    with threaded_servers(roster, others, network):
        with pytest.raises(PeerLost, match="expects other tables"):
            Trainer(
                make_model(),
                OPTIMIZERS,
                connect=lambda tables: RemoteClient("worker", network.channel("worker"), roster, tables),
            )
        network.channel("worker").close()  # its name is free


def test_a_cache_that_holds_no_row_is_refused() -> None:
    with servers(1) as connect, pytest.raises(ConfigError, match=r"servers.cache_bytes: 100 bytes .* at least 264"):
        Trainer(make_model(), OPTIMIZERS, connect=connect, staleness=2, cache_bytes=100)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_training_goes_on_to_the_bit_while_a_server_joins(num_threads: int) -> None:
    batches = make_batches()
    with Trainer(make_model(), OPTIMIZERS, num_threads=num_threads) as here:
        expected = train(here, batches)
    network, before = MemoryNetwork(), make_roster(2)
    after = before.add(Seat("server-2", incarnation=2))
    stop = threading.Event()
    with ExitStack() as opened:

        def connect(tables: TableSpecs) -> JobClient:
            opened.enter_context(threaded_servers(before, tables, network))
            newcomer = Server("server-2", after, tables, joining=True)
            thread = threading.Thread(target=serve, args=(newcomer, network.channel("server-2"), stop.is_set, 0.01))
            thread.start()
            opened.callback(thread.join)
            opened.callback(stop.set)
            return RemoteClient("worker", network.channel("worker"), before, tables)

        with Trainer(make_model(), OPTIMIZERS, num_threads=num_threads, connect=connect) as there:
            losses = train(there, batches[:4])
            assert run_rebalance(network.channel("asker"), before, after) > 0
            losses += train(there, batches[4:])
            assert there.client.num_shards == 3
    assert losses == expected
