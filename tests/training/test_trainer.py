"""The trainer against plain PyTorch, and its promises about shards, snapshots and errors."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn

from heterps.config import SGD, Adagrad, Adam, AfterSightings, Clip, Optimizers, Schema, StepRate, Tables
from heterps.data.batch import Batch, Slots
from heterps.data.keys import slots_from_ids
from heterps.errors import ModelError, NotFinite, StorageError
from heterps.model.zoo import ZOO
from heterps.nn import SparseEmbedding
from heterps.ps.keys.dedup import make_lookup
from heterps.training.model.trainer import Trainer

SCHEMA = Schema(dense=("a", "b", "c"), slots=("s", "t", "u", "v"))
NUM_IDS = 40
SPARSE = {"sgd": SGD(lr=0.05), "adagrad": Adagrad(lr=0.05), "adam": Adam(lr=0.01)}


@pytest.fixture(autouse=True)
def _keep_random_state():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def make_batches(count=30, size=32, seed=0):
    """Batches of samples whose label depends on an id and a dense value, with many duplicate keys."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        ids = random.integers(0, NUM_IDS, (size, len(SCHEMA.slots))) ** 2 // NUM_IDS
        dense = random.normal(size=(size, len(SCHEMA.dense))).astype(np.float32)
        label = ((ids[:, 0] % 3 + dense[:, 0]) > 1).astype(np.float32)
        yield Batch(dense, slots_from_ids(ids, SCHEMA.slots), label)


def make_model(name="ctr_dnn", **args):
    torch.manual_seed(1)
    return ZOO[name](SCHEMA, **{"embedding_dim": 4, "hidden": (16, 8), **args})


def losses(trainer, batches):
    return [trainer.step(trainer.prepare(batch))[0] for batch in batches]


def state_of(trainer):
    """Everything that was trained, with the rows in the order of their keys."""
    snapshot = trainer.snapshot(0, {})
    arrays = dict(snapshot.dense)
    for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
        order = np.argsort(table.keys)
        arrays |= {f"{name}.{part}": getattr(table, part)[order] for part in ("keys", "values", "state")}
    return arrays


def assert_equal_states(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), f"{name} differs"


# --- transparency ----------------------------------------------------------------------------------------------------


class PlainEmbedding(nn.Module):
    """What a SparseEmbedding does, on torch's own embedding: a row a known key."""

    def __init__(self, keys: np.ndarray, rows: np.ndarray) -> None:
        super().__init__()
        self.keys = keys  # sorted
        self.rows = nn.Embedding(*rows.shape, sparse=True, _weight=torch.from_numpy(rows.copy()))

    def forward(self, slots: Slots) -> torch.Tensor:
        indices = torch.from_numpy(np.searchsorted(self.keys, slots.keys))
        return self.rows(indices.reshape(len(slots), -1))


def plain_losses(model, trainer, batches, sparse):
    """The losses of plain PyTorch from the model and the initial rows that `trainer` starts from."""
    keys = np.unique(np.concatenate([batch.slots.keys for batch in batches]))
    lookup = make_lookup(keys, trainer.client.num_shards)
    rows = trainer.client.pull("embedding", lookup, create=False).result()
    model.embedding = PlainEmbedding(keys, rows[lookup.inverse])
    dense = [p for name, p in model.named_parameters() if not name.startswith("embedding")]
    row_optimizer = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
        "adam": lambda p: torch.optim.SparseAdam(p, lr=0.01),
    }[sparse](list(model.embedding.parameters()))
    optimizers = [row_optimizer, torch.optim.Adam(dense, lr=0.01)]
    found = []
    for batch in batches:
        output = model(torch.from_numpy(batch.dense), batch.slots)
        loss = nn.functional.binary_cross_entropy_with_logits(output, torch.from_numpy(batch.label))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("sparse", SPARSE)
@pytest.mark.parametrize("name", ["ctr_dnn", "deepfm"])
def test_training_equals_plain_pytorch(name, sparse):
    model, batches = make_model(name), list(make_batches())
    plain = copy.deepcopy(model)
    with Trainer(model, Optimizers(sparse=SPARSE[sparse], dense=Adam(lr=0.01)), seed=3, num_shards=2) as trainer:
        expected = plain_losses(plain, trainer, batches, sparse)
        assert losses(trainer, batches) == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < expected[0] * 0.9, "the comparison is of a model that learns"


def test_a_step_is_made_with_clipped_gradients():
    batch = next(make_batches())
    sgd = SGD(lr=1.0)
    with Trainer(make_model(), Optimizers(sparse=sgd, dense=sgd, clip=Clip(norm=0.01)), num_shards=2) as trainer:
        before = trainer.client.pull_dense("dense").result().copy()
        found = trainer.gradients(batch)
        (rows,) = found.rows
        by_key = {key: rows.grads[rows.lookup.inverse == u].sum(0) for u, key in enumerate(rows.lookup.unique)}
        norm = np.sqrt(sum(np.square(grads).sum() for grads in (*found.dense.values(), *by_key.values())))
        assert norm > 0.05
        trainer.step(batch)
        moved = before - trainer.client.pull_dense("dense").result()
        np.testing.assert_allclose(moved, found.dense["dense"] * 0.01 / norm, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("name", ["ctr_dnn", "deepfm"])
def test_the_number_of_shards_changes_no_bit(name):
    states = []
    for num_shards in (1, 2, 3):
        with Trainer(make_model(name), num_shards=num_shards) as trainer:
            found = losses(trainer, make_batches())
            states.append(state_of(trainer) | {"losses": np.array(found)})
    assert_equal_states(states[0], states[1])
    assert_equal_states(states[0], states[2])


def test_preparing_ahead_changes_nothing():
    with Trainer(make_model()) as one, Trainer(make_model()) as other:
        ahead = [one.prepare(batch) for batch in make_batches()]
        assert [one.step(batch) for batch in ahead][-1][0] == [other.step(batch) for batch in make_batches()][-1][0]


def test_step_returns_the_loss_and_logits_from_before_the_step():
    batch = next(make_batches())
    with Trainer(make_model()) as trainer:
        before = trainer.evaluate([batch])
        loss, logits = trainer.step(batch)
        assert loss == pytest.approx(before.loss, rel=1e-6)
        assert logits.shape == (len(batch),)
        assert trainer.evaluate([batch]).loss < loss


def test_evaluation_creates_no_rows_and_leaves_the_model_training():
    with Trainer(make_model()) as trainer:
        metrics = trainer.evaluate(make_batches(3))
        assert metrics.count == 3 * 32
        assert trainer.num_rows == 0
        assert trainer.model.training


# --- models of one's own ---------------------------------------------------------------------------------------------


class Own(nn.Module):
    """Dropout, batch normalisation, a frozen layer and two embeddings, one of them with a table a slot."""

    def __init__(self) -> None:
        super().__init__()
        self.first = SparseEmbedding(("s", "t"), 4)
        self.second = SparseEmbedding(("u", "v"), 2, tables="per_slot", optimizer=SGD(lr=0.1))
        self.frozen = nn.Linear(3, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(2 * 4 + 2 * 2 + 4)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(2 * 4 + 2 * 2 + 4, 1)

    def forward(self, dense: torch.Tensor, slots: Slots) -> torch.Tensor:
        x = torch.cat([self.first(slots).flatten(1), self.second(slots).flatten(1), self.frozen(dense)], dim=1)
        return self.out(self.drop(self.norm(x)))


def test_a_model_with_dropout_buffers_and_frozen_parameters_trains():
    model = Own()
    frozen = model.frozen.weight.clone()
    with Trainer(model) as trainer:
        found = losses(trainer, make_batches(60))
        assert np.mean(found[-10:]) < np.mean(found[:10])
        assert torch.equal(model.frozen.weight, frozen)
        assert model.frozen.weight.grad is None
        assert model.norm.num_batches_tracked == 60
        assert set(trainer.snapshot(0, {}).tables) == {"first", "second.u", "second.v"}


@pytest.mark.parametrize("make", [make_model, Own])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_training_restored_from_a_snapshot_equals_training_never_stopped(make, num_shards):
    batches = list(make_batches(20))
    torch.manual_seed(5)
    with Trainer(make(), num_shards=2) as trainer:
        losses(trainer, batches[:8])
        snapshot = trainer.snapshot(8 * 32, {"where": 8})
        expected = losses(trainer, batches[8:])
        whole = state_of(trainer)
    torch.manual_seed(6)
    with Trainer(make(), num_shards=num_shards) as trainer:
        trainer.restore(snapshot)
        assert trainer.clock == 8
        assert losses(trainer, batches[8:]) == expected
        assert_equal_states(whole, state_of(trainer))


def test_a_schedule_follows_the_samples_and_goes_on_after_a_restore():
    """With the steps of both learning rates at known samples, a run equals one whose rates are set by hand."""
    batches = list(make_batches(6))
    optimizers = Optimizers(sparse=SGD(lr=0.1), dense=SGD(lr=0.1), schedule=StepRate(every=3 * 32, factor=0.5))
    with Trainer(make_model(), optimizers) as trainer:
        losses(trainer, batches[:4])
        snapshot = trainer.snapshot(trainer.samples, {})
    with Trainer(make_model(), optimizers, num_shards=2) as trainer:
        trainer.restore(snapshot)
        losses(trainer, batches[4:])
        found = state_of(trainer)
    by_hand = [Optimizers(sparse=SGD(lr=lr), dense=SGD(lr=lr)) for lr in (0.1, 0.05)]
    with Trainer(make_model(), by_hand[0]) as trainer:
        losses(trainer, batches[:3])
        snapshot = trainer.snapshot(0, {})
    with Trainer(make_model(), by_hand[1]) as trainer:
        trainer.restore(snapshot)
        losses(trainer, batches[3:])
        assert_equal_states(found, state_of(trainer))


def test_what_the_job_says_of_tables_reaches_them():
    with Trainer(make_model(), tables=Tables(admission=AfterSightings(num=255))) as trainer:
        losses(trainer, make_batches(2))
        assert trainer.num_rows == 0


def test_a_snapshot_is_a_copy():
    with Trainer(make_model()) as trainer:
        losses(trainer, make_batches(2))
        snapshot = trainer.snapshot(0, {})
        before = {name: array.copy() for name, array in snapshot.dense.items() if name != "random/torch"}
        losses(trainer, make_batches(2))
        for name, array in before.items():
            assert (snapshot.dense[name] == array).all(), name


class OwnLoss(nn.Module):
    def __init__(self, value=None) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.value = value

    def forward(self, dense: torch.Tensor, slots: Slots) -> torch.Tensor:
        return self.out(dense)

    def loss(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return ((output[:, 0] - label) ** 2).mean() if self.value is None else self.value(output)


def test_a_models_own_loss_takes_the_place_of_the_default():
    model, batch = OwnLoss(), next(make_batches())
    with torch.no_grad():
        expected = model.loss(model(torch.from_numpy(batch.dense), batch.slots), torch.from_numpy(batch.label))
    with Trainer(model, Optimizers(dense=SGD(lr=0.1))) as trainer:
        assert trainer.step(batch)[0] == expected.item()
        assert trainer.step(batch)[0] < expected.item()


def test_weights_that_are_shared_are_one_parameter():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.two = nn.Linear(3, 3)
            self.two.weight = self.one.weight

        def forward(self, dense: torch.Tensor, slots: Slots) -> torch.Tensor:
            return self.two(self.one(dense)).sum(1)

    with Trainer(Tied(), Optimizers(dense=SGD(lr=0.1))) as trainer:
        losses(trainer, make_batches(3))
        assert torch.equal(trainer.model.one.weight, trainer.model.two.weight)
        assert trainer.client.pull_dense("dense").result().size == 9 + 3 + 3


# --- errors ----------------------------------------------------------------------------------------------------------


class Returns(nn.Module):
    def __init__(self, what) -> None:
        super().__init__()
        self.out = nn.Linear(3, 4)
        self.what = what

    def forward(self, dense: torch.Tensor, slots: Slots) -> object:
        return self.what(self.out(dense))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda x: x, r"one logit for each of the 32 samples; it returned shape \[32, 4\]"),
        (lambda x: x[:5, 0], r"it returned shape \[5\]"),
        (lambda x: x.sum(), r"it returned shape \[\]"),
        (lambda x: {"logits": x}, "it returned a dict of logits"),
        (lambda x: x.reshape(7, 3), r"Returns failed on a batch of 32 samples after 0 steps: RuntimeError: .*\[7, 3\]"),
        (lambda x: x[:, 0].detach(), "does not require grad"),
    ],
)
def test_a_model_that_returns_no_logits_is_told_what_it_returned(what, message):
    with Trainer(Returns(what)) as trainer, pytest.raises(ModelError, match=message):
        trainer.step(next(make_batches()))


def test_logits_of_half_precision_train():
    with Trainer(Returns(lambda x: x[:, 0].bfloat16())) as trainer:
        assert trainer.step(next(make_batches()))[1].dtype == np.float32


@pytest.mark.parametrize(
    ("value", "message"), [(lambda o: o, r"it returned shape \[32, 1\]"), (lambda o: 1.0, "it returned float")]
)
def test_a_loss_that_is_not_one_number_is_refused(value, message):
    with Trainer(OwnLoss(value)) as trainer, pytest.raises(ModelError, match=message):
        trainer.step(next(make_batches()))


def test_a_batch_without_a_slot_of_the_model_is_an_error_that_names_it():
    ids = np.zeros((4, 1), np.int64)
    batch = Batch(np.zeros((4, 3), np.float32), slots_from_ids(ids, ("s",)), np.zeros(4, np.float32))
    with Trainer(make_model()) as trainer, pytest.raises(ModelError, match="no slot named t, u, v"):
        trainer.prepare(batch)


def test_a_loss_that_is_not_finite_names_the_step_and_the_parameter():
    model = make_model()
    with Trainer(model) as trainer:
        losses(trainer, make_batches(2))
        with torch.no_grad():
            model.deep.linear2.bias[3] = float("nan")
        with pytest.raises(NotFinite, match=r"the loss of step 3 is nan\. .* not finite is deep\.linear2\.bias"):
            trainer.step(next(make_batches()))
        assert trainer.clock == 2


def test_a_loss_that_is_not_finite_with_good_parameters_points_elsewhere():
    with (
        Trainer(OwnLoss(lambda o: o.sum() / 0)) as trainer,
        pytest.raises(NotFinite, match="Every dense parameter is finite: look at the rows"),
    ):
        trainer.step(next(make_batches()))


def test_parameters_that_are_not_float32_are_refused_by_name():
    with pytest.raises(ModelError, match=r"deep\.linear1\.weight is torch\.float64 on cpu"):
        Trainer(make_model().double())


@pytest.mark.parametrize(
    ("model", "optimizers", "message"),
    [
        (lambda: make_model(hidden=(8, 8)), Optimizers(), "size mismatch for deep.linear1.weight"),
        (lambda: make_model(embedding_dim=8, hidden=()), Optimizers(), "another model"),
        (Own, Optimizers(), "only one of them has the tables embedding, first, second.u, second.v"),
        (make_model, Optimizers(dense=SGD()), "the saved state has"),
        (
            make_model,
            Optimizers(sparse=SGD()),
            "table embedding has rows of 4 values and 0 words of state, the saved one of 4 and 4",
        ),
    ],
)
def test_a_snapshot_of_another_model_or_optimizer_is_refused(model, optimizers, message):
    with Trainer(make_model()) as trainer:
        losses(trainer, make_batches(2))
        snapshot = trainer.snapshot(0, {})
    with Trainer(model(), optimizers) as trainer, pytest.raises(ModelError, match=message):
        trainer.restore(snapshot)


def test_closing_leaves_no_threads(monkeypatch):
    monkeypatch.setattr("heterps.ps.client.local.FEW_TO_PULL", 0)  # however few the keys, wake the shards' threads
    before = set(threading.enumerate())
    with Trainer(make_model(), num_shards=3) as trainer:
        losses(trainer, make_batches(2))
        assert set(threading.enumerate()) > before
    trainer.close()
    assert set(threading.enumerate()) == before


def test_gradients_applied_later_are_those_of_the_parameters_they_were_computed_with():
    """What an asynchronous worker does."""
    batches = make_batches(2)
    with Trainer(make_model(), Optimizers(sparse=SGD(lr=0.1), dense=SGD(lr=0.5))) as trainer:
        first, second = (trainer.prepare(batch) for batch in batches)
        before = trainer.client.export_dense("dense")[0]
        found = trainer.gradients(first)
        np.testing.assert_array_equal(trainer.client.export_dense("dense")[0], before)
        trainer.step(second)
        between = trainer.client.export_dense("dense")[0]
        assert trainer.gradients(first).loss != found.loss
        trainer.apply(found)
        np.testing.assert_allclose(
            trainer.client.export_dense("dense")[0], between - 0.5 * found.dense["dense"], rtol=1e-6
        )
        assert (trainer.clock, trainer.samples) == (2, len(first) + len(second))


def test_gradients_and_then_apply_are_a_step():
    with Trainer(make_model()) as whole, Trainer(make_model()) as halves:
        for batch in make_batches(4):
            loss, logits = whole.step(whole.prepare(batch))
            found = halves.gradients(halves.prepare(batch))
            halves.apply(found)
            assert found.loss == loss
            np.testing.assert_array_equal(found.logits, logits)
        assert_equal_states(state_of(whole), state_of(halves))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_step_after_one_that_failed_is_the_step_that_it_would_have_been(num_threads):
    first, bad, last = make_batches(3, size=160)
    with Trainer(make_model(), num_threads=num_threads) as whole:
        losses(whole, [first])
        whole.gradients(bad)  # makes its rows, as the step that fails does
        expected = losses(whole, [last]), state_of(whole)
    with Trainer(make_model(), num_threads=num_threads) as trainer:
        losses(trainer, [first])
        bad.dense[:] = np.nan
        with pytest.raises(NotFinite):
            trainer.step(bad)
        assert losses(trainer, [last]) == expected[0]
        assert_equal_states(state_of(trainer), expected[1])


def test_gradients_whose_push_failed_are_not_pushed_with_the_next(monkeypatch):
    first, last = make_batches(2)
    with Trainer(make_model()) as trainer:
        with monkeypatch.context() as patched:
            patched.setattr(trainer.client, "push", fail)
            with pytest.raises(StorageError):
                trainer.step(first)
        with Trainer(make_model()) as other:
            np.testing.assert_array_equal(trainer.gradients(last).dense["dense"], other.gradients(last).dense["dense"])


def fail(*_):
    raise StorageError("the disk is full")


def test_a_trainer_that_cannot_start_closes_its_client(monkeypatch):
    closed = []
    monkeypatch.setattr("heterps.training.model.trainer.bind_tables", fail)
    monkeypatch.setattr("heterps.ps.client.local.LocalClient.close", lambda client: closed.append(client))
    with pytest.raises(StorageError):
        Trainer(make_model())
    assert len(closed) == 1
