"""Steps divided among threads are the steps of the whole batch, and models that cannot be divided are not."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn
from zoo_cases import CASES, small_batch, small_model

from heterps.config import SGD, Optimizers, Schema
from heterps.data.batch import Batch, Slots
from heterps.data.keys import slots_from_ids
from heterps.errors import ModelError
from heterps.lookups import slice_slots
from heterps.model.zoo import ZOO
from heterps.nn import SparseEmbedding
from heterps.training.model import replicas
from heterps.training.model.replicas import LEAST_SAMPLES
from heterps.training.model.trainer import Trainer

SCHEMA = Schema(dense=("a", "b"), slots=("s", "t", "u"))
SIZE = 5 * LEAST_SAMPLES


@pytest.fixture(autouse=True)
def _as_it_was():
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


def make_batches(count=10, size=SIZE, ragged=False):
    random = np.random.default_rng(1)
    for _ in range(count):
        dense = random.normal(size=(size, 2)).astype(np.float32)
        ids = random.integers(0, 50, (size, 3))
        label = (ids[:, 0] % 2).astype(np.float32)
        slots = slots_from_ids(ids, SCHEMA.slots)
        if ragged:
            lengths = random.integers(0, 4, size * 3)
            keys = random.integers(0, 50, lengths.sum()).astype(np.uint64)
            slots = Slots(SCHEMA.slots, keys, np.concatenate([[0], np.cumsum(lengths)]))
        yield Batch(dense, slots, label)


class Net(nn.Module):
    """An embedding, one layer, and whatever a test adds between them."""

    def __init__(self, extra: nn.Module | None = None, uses: int = 1, tables: str = "one") -> None:
        super().__init__()
        self.embedding = SparseEmbedding(SCHEMA.slots, 4, tables=tables)
        self.extra = extra or nn.Identity()
        self.out = nn.Linear(14, 1)
        self.uses = uses

    def forward(self, dense, slots):
        rows = sum(self.embedding(slots) for _ in range(self.uses))
        return self.out(self.extra(torch.cat([dense, rows.flatten(1)], dim=1))).squeeze(1)


class Noise(nn.Module):
    """Adds random numbers that are too small to be seen in one output."""

    def forward(self, x):
        return x + 1e-9 * torch.rand_like(x)


BINARY = Schema()


def train(model, num_threads, batches, num_shards=1, columns=BINARY):
    """Losses, logits and everything trained after these steps, and whether they were divided."""
    with Trainer(model, num_shards=num_shards, num_threads=num_threads, columns=columns) as trainer:
        steps = [trainer.step(trainer.prepare(batch)) for batch in batches]
        snapshot = trainer.snapshot(0, {})
        divided = bool(trainer._replicas._divisible)
    arrays = {name: array for name, array in snapshot.dense.items() if not name.startswith("random")}
    for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
        order = np.argsort(table.keys)
        arrays |= {f"{name}/{part}": getattr(table, part)[order] for part in ("keys", "values", "state")}
    return np.array([loss for loss, _ in steps]), np.concatenate([logits for _, logits in steps]), arrays, divided


def make(name):
    torch.manual_seed(3)
    if name in ZOO:
        return ZOO[name](SCHEMA, embedding_dim=4, hidden=(16, 8))
    return Net(uses=2) if name == "twice" else Net(tables=name)


@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_learns_and_equals_itself_when_divided(name):
    def run(num_threads):
        torch.manual_seed(3)
        batches = [small_batch(name, SIZE, seed) for seed in range(40)]
        return train(small_model(name), num_threads, batches, columns=CASES[name][0] if name == "mmoe" else BINARY)

    whole, pieces = run(1), run(2)
    assert pieces[3], "its samples can be divided"
    np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-4)
    np.testing.assert_allclose(pieces[1], whole[1], rtol=1e-2, atol=1e-3)
    assert whole[0][-5:].mean() < 0.9 * whole[0][0], "the loss falls"


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", ["ctr_dnn", "deepfm", "one", "per_slot", "twice"])
def test_divided_steps_equal_those_of_the_whole_batch(name, ragged):
    whole = train(make(name), 1, make_batches(ragged=ragged))
    for num_threads, num_shards in ((2, 1), (3, 2)):
        pieces = train(make(name), num_threads, make_batches(ragged=ragged), num_shards)
        assert pieces[3], "these models let their samples be divided"
        np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-6)
        np.testing.assert_allclose(pieces[1], whole[1], rtol=1e-4, atol=1e-5)
        assert pieces[2].keys() == whole[2].keys()
        for key, array in whole[2].items():
            np.testing.assert_allclose(pieces[2][key], array, rtol=1e-3, atol=1e-5, err_msg=key)


def test_divided_training_is_repeatable_to_the_bit():
    first, second = (train(make("ctr_dnn"), 3, make_batches()) for _ in range(2))
    assert np.array_equal(first[0], second[0])
    assert all(np.array_equal(first[2][name], second[2][name]) for name in first[2])


class RemembersItsForward(Net):
    """Its loss uses what forward left behind, which each twin must find as its own forward left it."""

    def forward(self, dense, slots):
        logits = super().forward(dense, slots)
        self.penalty = logits.square()
        return logits

    def losses(self, output, label):
        return (output - label) ** 2 + 0.1 * self.penalty + self.out.weight.square().sum()


def test_a_loss_that_uses_what_forward_left_behind_equals_that_of_the_whole_batch():
    def run(num_threads):
        torch.manual_seed(3)
        return train(RemembersItsForward(), num_threads, make_batches())

    whole, pieces = run(1), run(2)
    assert pieces[3], "its samples can be divided"
    np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-5)


class OwnLoss(Net):
    def loss(self, output, label):
        return ((output - label) ** 2).mean()


@pytest.mark.parametrize(
    "make_model",
    [
        lambda: Net(nn.BatchNorm1d(14)),
        lambda: Net(nn.BatchNorm1d(14, track_running_stats=False)),
        lambda: Net(nn.Dropout(0.5)),
        lambda: Net(Noise()),
        OwnLoss,
    ],
    ids=[
        "buffers",
        "samples that influence one another",
        "random numbers",
        "random numbers that hardly matter",
        "a loss of its own",
    ],
)
def test_a_model_that_cannot_be_divided_trains_on_the_whole_batch(make_model):
    def run(num_threads):
        torch.manual_seed(3)
        return train(make_model(), num_threads, make_batches(4))

    whole, asked = run(1), run(2)
    assert not asked[3]
    assert np.array_equal(whole[0], asked[0]), "the try-out left something behind"
    assert all(np.array_equal(whole[2][name], asked[2][name]) for name in whole[2])


def test_batches_too_small_to_divide_are_trained_whole():
    batches = [*make_batches(2), *make_batches(1, size=LEAST_SAMPLES)]
    whole, pieces = train(make("ctr_dnn"), 1, batches), train(make("ctr_dnn"), 2, batches)
    np.testing.assert_allclose(pieces[0], whole[0], rtol=1e-6)


def test_models_too_small_to_divide_are_trained_whole_on_one_thread(monkeypatch):
    batches = list(make_batches(2))
    whole = train(make("ctr_dnn"), 1, batches)
    monkeypatch.setattr(replicas, "LEAST_WORK", 10**9)
    torch.set_num_threads(2)
    small = train(make("ctr_dnn"), 2, batches)
    assert not small[3]
    assert torch.get_num_threads() == 1, "threads inside a layer cost a small model as much as pieces do"
    assert np.array_equal(whole[0], small[0])


def test_rows_that_backward_does_not_reach_are_left_alone():
    class DenseOnly(Net):
        def forward(self, dense, slots):
            return super().forward(dense, slots).detach() + self.out.weight[0, :2] @ dense.T

    model = DenseOnly()
    with Trainer(model, Optimizers(sparse=SGD(lr=1.0)), num_threads=2) as trainer:
        (batch,) = make_batches(1)
        before = model.embedding.eval()(batch.slots).clone()
        model.train()
        trainer.step(batch)
        assert torch.equal(model.embedding.eval()(batch.slots), before)


def test_an_error_in_a_piece_is_the_models_and_names_the_step():
    class Fails(Net):
        def forward(self, dense, slots):
            if not torch.is_grad_enabled():
                return super().forward(dense, slots)
            raise RuntimeError("no such thing")

    with Trainer(Fails(), num_threads=2) as trainer, pytest.raises(ModelError, match=r"after 0 steps.*no such thing"):
        trainer.step(next(make_batches(1)))


def test_closing_ends_the_threads():
    before = threading.active_count()
    train(make("ctr_dnn"), 4, make_batches(2), num_shards=2)
    assert threading.active_count() == before


@pytest.mark.parametrize("ragged", [False, True])
def test_cut_gives_the_samples_that_were_asked_for(ragged):
    (batch,) = make_batches(1, size=20, ragged=ragged)
    module = SparseEmbedding(SCHEMA.slots, 2)
    whole = module(batch.slots)
    for first, last in ((0, 20), (0, 7), (7, 20), (5, 5)):
        piece = slice_slots(batch.slots, first, last)
        assert len(piece) == last - first
        assert torch.equal(module(piece), whole[first:last])
        assert torch.equal(module(Slots(piece.names, piece.keys, piece.offsets)), whole[first:last])


@pytest.mark.parametrize("stop", [1, 4])
def test_divided_training_resumed_equals_training_never_stopped_to_the_bit(stop):
    batches = list(make_batches(8))
    whole = train(make("ctr_dnn"), 2, batches, num_shards=2)
    with Trainer(make("ctr_dnn"), num_shards=2, num_threads=2) as trainer:
        before = [trainer.step(batch)[0] for batch in batches[:stop]]
        snapshot = trainer.snapshot(0, {})
    with Trainer(make("ctr_dnn"), num_shards=1, num_threads=2) as trainer:
        trainer.restore(snapshot)
        after = [trainer.step(Batch(b.dense, Slots(b.slots.names, b.slots.keys), b.label))[0] for b in batches[stop:]]
        assert trainer._replicas._divisible, "the resumed steps must be divided too"
    assert np.array_equal(whole[0], np.array(before + after))
