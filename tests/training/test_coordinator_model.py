"""The whole model of stages that are apart: its checkpoints are those of one process, to the bit, and go both ways."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import make_roster, threaded_servers
from staged import SLOTS, Staged, a_batch, arrays_of, assert_same_arrays, splits, tied, zoo_model
from torch import Tensor, nn
from zoo_cases import small_batch

from heterps.arrays import FloatArray
from heterps.checkpoint import Snapshot, load_latest, save
from heterps.config import SGD, Adagrad, Adam, AdamW, Optimizers, Schema, StepRate
from heterps.data.batch import Batch, Slots
from heterps.errors import ModelError
from heterps.lookups import RowGradients
from heterps.model.zoo import ZOO
from heterps.nn import SparseEmbedding
from heterps.ps.client.interface import JobClient
from heterps.ps.client.local import LocalClient
from heterps.ps.client.remote import RemoteClient
from heterps.ps.keys.dedup import Lookup, make_lookup
from heterps.training.coordinator.model import CoordinatorModel
from heterps.training.model.objectives import Objectives
from heterps.training.model.trainer import Gradients, Trainer
from heterps.wire import MemoryNetwork

DENSE_OPTIMIZERS = [SGD(lr=0.1), Adam(lr=0.01), AdamW(lr=0.01), Adagrad(lr=0.1)]
PROGRESS = {"position": {"epoch": 1}}


@pytest.fixture(autouse=True)
def _keep_random_state() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def push(staged: Staged, client: JobClient, found: Gradients, samples: int) -> None:
    """A step of all workers together, with the gradients of an inline trainer."""
    client.samples = samples
    sizes = {name: p.numel() for name, p in staged.model.named_parameters() if p.requires_grad}
    ends = dict(zip(sizes, np.cumsum(list(sizes.values())), strict=True))
    for rows in found.rows:
        client.pull(rows.table, rows.lookup).result()
        client.push(*rows).result()
    for table, names in staged.tables.parameters.items():
        (dense,) = found.dense.values()
        parts = [dense[ends[name] - sizes[name] : ends[name]] for name in names]
        client.push_dense(table, np.concatenate(parts)).result()


def train_both(trainer: Trainer, staged: Staged, client: JobClient, batches: list[Batch]) -> None:
    for batch in batches:
        found = trainer.gradients(trainer.prepare(batch))
        push(staged, client, found, trainer.samples)
        trainer.apply(found)


def assert_same_snapshots(one: Snapshot, other: Snapshot) -> None:
    assert (one.clock, one.samples, one.progress) == (other.clock, other.samples, other.progress)
    assert_same_arrays(arrays_of(one), arrays_of(other))


def fresh(batch: Batch) -> Batch:
    """The same samples with nothing prepared."""
    return Batch(batch.dense, Slots(batch.slots.names, batch.slots.keys, batch.slots.offsets), batch.label)


@pytest.mark.parametrize("optimizer", DENSE_OPTIMIZERS, ids=lambda o: o.kind)
@settings(max_examples=15)
@given(data=st.data())
def test_snapshots_of_any_stages_are_those_of_an_inline_run_and_each_resumes_the_other(
    optimizer: SGD | Adam | AdamW | Adagrad, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([*sorted(ZOO), "tied"]), "model")
    model, columns = (tied(), Schema()) if name == "tied" else zoo_model(name)
    batches = [a_batch(seed=i) if name == "tied" else small_batch(name, 6, i) for i in range(4)]
    optimizers = Optimizers(dense=optimizer, schedule=StepRate(every=10, factor=0.5))

    def staged(what: str) -> Staged:
        other = copy.deepcopy(model)
        return Staged(other, data.draw(splits(other), what), optimizers, columns)

    first = staged("boundaries")
    with Trainer(copy.deepcopy(model), optimizers, columns=columns) as trainer:
        client = first.client()
        whole = CoordinatorModel(first.model, first.tables, client, Objectives(columns))
        whole.fill()
        train_both(trainer, first, client, batches[:2])
        inline = trainer.snapshot(trainer.samples, PROGRESS)
        apart = whole.snapshot(2, trainer.samples, PROGRESS)
        assert_same_snapshots(inline, apart)

        second = staged("boundaries after")
        resumed = CoordinatorModel(second.model, second.tables, second.client(), Objectives(columns))
        resumed.restore(inline)
        assert_same_snapshots(resumed.snapshot(2, trainer.samples, PROGRESS), inline)

        with Trainer(copy.deepcopy(model), optimizers, columns=columns) as again:
            again.restore(apart)
            train_both(again, second, resumed.client, [fresh(batch) for batch in batches[2:]])
            train_both(trainer, first, client, batches[2:])
            expected = trainer.snapshot(trainer.samples, PROGRESS)
            assert_same_snapshots(again.snapshot(again.samples, PROGRESS), expected)
            assert_same_snapshots(resumed.snapshot(4, trainer.samples, PROGRESS), expected)
            assert_same_snapshots(whole.snapshot(4, trainer.samples, PROGRESS), expected)


@pytest.mark.parametrize("name", ["ctr_dnn", "two_emb", "resnet"])
def test_evaluation_sizes_and_counters_are_those_of_an_inline_run(name: str) -> None:
    model, columns = zoo_model(name)
    staged = Staged(copy.deepcopy(model), [1, 2], columns=columns)
    with Trainer(model, columns=columns) as trainer:
        client = staged.client()
        whole = CoordinatorModel(staged.model, staged.tables, client, Objectives(columns))
        whole.fill()
        train_both(trainer, staged, client, [small_batch(name, 8, seed) for seed in range(3)])
        unseen = [small_batch(name, 8, seed, num_ids=99) for seed in range(5, 8)]
        expected = trainer.evaluate([trainer.prepare(batch) for batch in unseen]).state()
        assert whole.evaluate([whole.prepare(fresh(batch)) for batch in unseen]).state() == expected
        assert whole.model.training, "the model goes on training"
        for what in ("num_rows", "table_bytes", "counters", "tier_counts"):
            assert getattr(whole, what) == getattr(trainer, what), what


def test_a_snapshot_survives_the_disk(tmp_path) -> None:
    staged = Staged(tied(), [3])
    whole = CoordinatorModel(staged.model, staged.tables, staged.client(), Objectives())
    whole.fill()
    snapshot = whole.snapshot(0, 0, PROGRESS)
    save(tmp_path, snapshot)
    with Trainer(tied()) as trainer:
        trainer.restore(load_latest(tmp_path))
        assert_same_snapshots(trainer.snapshot(0, PROGRESS), snapshot)


def test_snapshots_of_servers_are_those_of_one_process_and_go_to_other_servers_by_another_plan() -> None:
    batches = [a_batch(seed=seed) for seed in range(3)]
    with Trainer(tied()) as trainer, servers(Staged(tied(), [3]), 2) as (staged, whole):
        whole.fill()
        for batch in batches:
            found = trainer.gradients(batch)
            sums = [rows._replace(lookup=relookup(rows, whole.client)) for rows in found.rows]
            push(staged, whole.client, found._replace(rows=sums), trainer.samples)
            trainer.apply(found)
        expected = trainer.snapshot(36, {})
        snapshot = whole.snapshot(3, 36, {})
        assert_same_snapshots(snapshot, expected)
        score = trainer.evaluate([a_batch(seed=9)]).state()
        assert whole.evaluate([a_batch(seed=9)]).state() == score
    with servers(Staged(tied(), [2, 4, 6, 9]), 3) as (_, whole):
        whole.restore(snapshot)
        assert_same_snapshots(whole.snapshot(3, 36, {}), expected)
        assert whole.evaluate([a_batch(seed=9)]).state() == score


@contextmanager
def servers(staged: Staged, num: int) -> Iterator[tuple[Staged, CoordinatorModel]]:
    """The whole model on so many servers, on threads."""
    network, roster, tables = MemoryNetwork(), make_roster(num), staged.tables.tables
    with threaded_servers(roster, tables, network):
        client = RemoteClient("coordinator", network.channel("coordinator"), roster, tables)
        try:
            yield staged, CoordinatorModel(staged.model, staged.tables, client, Objectives())
        finally:
            client.close()


def relookup(rows: RowGradients, client: JobClient) -> Lookup:
    """The keys of a lookup, for the shards of another client."""
    return make_lookup(rows.lookup.unique[rows.lookup.inverse], client.num_shards)


def test_fill_gives_tables_the_model_as_built_once_and_refresh_brings_what_became_of_it() -> None:
    staged = Staged(tied(), [3])
    before = {name: p.detach().clone() for name, p in staged.model.named_parameters()}
    client = staged.client()
    whole = CoordinatorModel(staged.model, staged.tables, client, Objectives())
    whole.fill()
    shared = staged.tables.parameters["dense.0-1"]
    assert shared == ("first.weight",)
    np.testing.assert_array_equal(client.pull_dense("dense.0-1").result(), before["first.weight"].flatten())
    client.push_dense("dense.0-1", np.ones(4, np.float32)).result()
    assert torch.equal(staged.model.first.weight, before["first.weight"]), "it is not the table's memory"
    whole.fill()
    whole.refresh()
    assert not torch.equal(staged.model.first.weight, before["first.weight"])
    assert staged.model.last.weight is staged.model.first.weight
    for name, parameter in staged.model.named_parameters():
        assert name == "first.weight" or torch.equal(parameter, before[name]), name


class Norms(nn.Module):
    """Running means; one of the modules has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.again = self.norm
        self.out = nn.Linear(2, 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.out(self.norm(self.a(dense))).squeeze(1)


def test_buffers_of_workers_are_in_the_snapshot_under_all_their_names_and_come_back() -> None:
    staged = Staged(Norms(), [2])
    whole = CoordinatorModel(staged.model, staged.tables, staged.client(), Objectives())
    whole.fill()
    mean, count = np.array([3.0, 4.0], np.float32), torch.tensor(7)
    snapshot = whole.snapshot(1, 5, {}, {"norm.running_mean": mean, "norm.num_batches_tracked": count})
    for name in ("model/norm.running_mean", "model/again.running_mean"):
        np.testing.assert_array_equal(snapshot.dense[name], mean)
    other = Staged(Norms(), [1])
    resumed = CoordinatorModel(other.model, other.tables, other.client(), Objectives())
    resumed.restore(snapshot)
    given_back = resumed.buffers_of(["norm.num_batches_tracked", "norm.running_mean"])
    assert given_back["norm.num_batches_tracked"] == 7
    np.testing.assert_array_equal(given_back["norm.running_mean"], mean)
    given_back["norm.running_mean"][:] = 0
    np.testing.assert_array_equal(other.model.norm.running_mean, mean)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("nobody", (2,), "has none"), ("norm.running_mean", (1,), r"has shape \[2\]"), ("a.weight", (2, 2), "has none")],
)
def test_buffers_that_the_model_does_not_have_are_refused_and_change_nothing(
    name: str, shape: tuple[int, ...], message: str
) -> None:
    staged = Staged(Norms(), [2])
    whole = CoordinatorModel(staged.model, staged.tables, staged.client(), Objectives())
    with pytest.raises(ValueError, match=message):
        whole.load_buffers({"norm.running_var": torch.zeros(2), name: torch.zeros(shape)})
    assert torch.equal(staged.model.norm.running_var, torch.ones(2))


def test_a_snapshot_of_another_optimizer_or_model_is_refused() -> None:
    with Trainer(tied(), Optimizers(dense=SGD())) as trainer:
        snapshot = trainer.snapshot(0, {})
    staged = Staged(tied(), [3])
    with pytest.raises(ModelError, match="another model or optimizer: the saved state has 0 words, this model needs"):
        CoordinatorModel(staged.model, staged.tables, staged.client(), Objectives()).restore(snapshot)
    other = Staged(Norms(), [1])
    with pytest.raises(ModelError, match=r"only one of them has the tables block\.rows, shared"):
        CoordinatorModel(other.model, other.tables, other.client(), Objectives()).restore(snapshot)


def test_an_error_of_the_model_says_after_how_many_steps() -> None:
    staged = Staged(tied(), [3])
    whole = CoordinatorModel(staged.model, staged.tables, staged.client(), Objectives())
    whole.fill()
    whole.snapshot(3, 0, {})
    bad = Batch(np.zeros((2, 2), np.float32), Slots(("x",), np.zeros(2, np.uint64)), np.zeros(2, np.float32))
    with pytest.raises(ModelError, match=r"Tied failed on a batch of 2 samples after 3 steps: .*no slot named s, t"):
        whole.prepare(bad)


class RowsOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding(SLOTS, 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.rows(slots).sum((1, 2))


def test_a_model_without_dense_parameters_is_saved_and_restored_too() -> None:
    staged = Staged(RowsOnly(), [1])
    assert staged.tables.parameters == {}
    client = staged.client()
    whole = CoordinatorModel(staged.model, staged.tables, client, Objectives())
    whole.fill()
    with Trainer(RowsOnly()) as trainer:
        train_both(trainer, staged, client, [a_batch()])
        snapshot = whole.snapshot(1, 12, {})
        assert_same_snapshots(snapshot, trainer.snapshot(12, {}))
    with Trainer(RowsOnly()) as trainer:
        trainer.restore(snapshot)
        assert trainer.num_rows == whole.num_rows > 0


class KeptElsewhere:
    """Dense tables that workers keep: all that a whole model asks of them."""

    def __init__(self, tables: JobClient) -> None:
        self.pull_dense, self.fill_dense = tables.pull_dense, tables.fill_dense
        self.export_dense, self.import_dense = tables.export_dense, tables.import_dense


class RowsOnServers(LocalClient):
    """Servers that have no dense tables."""

    def pull_dense(self, table: str) -> None:  # type: ignore[override]
        raise AssertionError(f"{table} is not here")

    fill_dense = export_dense = import_dense = pull_dense  # type: ignore[assignment]


def test_dense_tables_may_be_elsewhere_than_on_the_servers() -> None:
    staged = Staged(tied(), [3])
    servers, workers = RowsOnServers(staged.tables.tables.sparse, {}), staged.client()
    whole = CoordinatorModel(staged.model, staged.tables, servers, Objectives(), dense=KeptElsewhere(workers))
    whole.fill()
    grads: FloatArray = np.ones(4, np.float32)
    workers.push_dense("dense.0-1", grads).result()
    whole.evaluate([a_batch()])
    snapshot = whole.snapshot(1, 0, {})
    again = Staged(tied(), [1])
    servers, workers = RowsOnServers(again.tables.tables.sparse, {}), again.client()
    resumed = CoordinatorModel(again.model, again.tables, servers, Objectives(), dense=KeptElsewhere(workers))
    resumed.restore(snapshot)
    assert workers.export_dense("dense.1")[2] == 1
    assert_same_snapshots(resumed.snapshot(1, 0, {}), snapshot)
