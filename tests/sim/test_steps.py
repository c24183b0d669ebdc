"""What a server does with gradients, against plain numpy and against one big batch."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.config import SGD, Model, Optimizers, Schema
from heterps.data.batch import Batch, Slots
from heterps.lookups import RowGradients
from heterps.model import build_model
from heterps.nn import DENSE
from heterps.ps.client.local import LocalClient
from heterps.ps.keys.dedup import make_lookup
from heterps.sim.steps import compensate, damping, mean_of, sum_of
from heterps.training.model.trainer import Gradients, Trainer

COLUMNS = Schema(dense=("a", "b"), slots=("s", "t"))


def make_batch(num: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 6, num * 2).astype(np.uint64)  # few: the same rows in and across batches
    dense = rng.normal(size=(num, 2)).astype(np.float32)
    return Batch(dense, Slots(("s", "t"), keys), rng.integers(0, 2, num).astype(np.float32))


def joined(batches: list[Batch]) -> Batch:
    return Batch(
        np.concatenate([batch.dense for batch in batches]),
        Slots(("s", "t"), np.concatenate([batch.slots.keys for batch in batches])),
        np.concatenate([batch.label for batch in batches]),
    )


def make_trainer() -> Trainer:
    model = build_model(Model(args={"embedding_dim": 4, "hidden": [8]}), COLUMNS, seed=1)
    return Trainer(model, Optimizers(sparse=SGD(lr=0.5), dense=SGD(lr=0.5)), seed=1)


def by_key(gradients: Gradients) -> dict[tuple[str, int], np.ndarray]:
    """The sum of each row's gradients."""
    found: dict[tuple[str, int], np.ndarray] = {}
    for part in gradients.rows:
        for i, grad in zip(part.lookup.inverse, part.grads, strict=True):
            key = part.table, int(part.lookup.unique[i])
            found[key] = found.get(key, np.zeros(len(grad))) + grad
    return found


def test_the_mean_of_unequal_batches_is_the_gradient_of_all_their_samples() -> None:
    batches = [make_batch(num, seed) for seed, num in enumerate((16, 16, 5))]
    with make_trainer() as trainer:
        mean = mean_of([trainer.gradients(batch) for batch in batches])
        whole = trainer.gradients(joined(batches))
    assert mean.num_samples == whole.num_samples == 37
    assert mean.loss == pytest.approx(whole.loss, rel=1e-6)
    np.testing.assert_array_equal(mean.logits, whole.logits)
    np.testing.assert_allclose(mean.dense[DENSE], whole.dense[DENSE], rtol=1e-4, atol=1e-7)
    ours, theirs = by_key(mean), by_key(whole)
    assert ours.keys() == theirs.keys()
    for key, grad in theirs.items():
        np.testing.assert_allclose(ours[key], grad, rtol=1e-4, atol=1e-7)


def test_the_sum_of_batches_is_their_mean_times_their_number() -> None:
    with make_trainer() as trainer:
        gradients = [trainer.gradients(make_batch(8, seed)) for seed in range(3)]
    total = sum(one.dense[DENSE] for one in gradients)
    np.testing.assert_allclose(sum_of(gradients).dense[DENSE], total, rtol=1e-5, atol=1e-7)
    mean = by_key(mean_of(gradients))
    for key, grad in by_key(sum_of(gradients)).items():
        np.testing.assert_allclose(grad, 3 * mean[key], rtol=1e-6)


def test_one_gradient_is_its_own_mean_to_the_bit() -> None:
    with make_trainer() as trainer:
        alone = trainer.gradients(make_batch(8, 0))
    assert mean_of([alone]) is alone


def test_compensation_is_the_formula_on_dense_weights_and_on_sums_of_rows() -> None:
    rng = np.random.default_rng(0)
    keys = np.array([7, 3, 7, 9, 3, 7], np.uint64)
    grads = rng.normal(size=(6, 2)).astype(np.float32)
    lookup = make_lookup(keys)
    then, now = (rng.normal(size=(3, 2)).astype(np.float32) for _ in range(2))
    dense, dense_then, dense_now = (rng.normal(size=5).astype(np.float32) for _ in range(3))
    given = Gradients(0.5, np.zeros(3, np.float32), 3, {DENSE: dense}, [RowGradients("t", lookup, grads)])
    found = compensate(given, 0.3, dense={DENSE: (dense_then, dense_now)}, rows={"t": (then, now)})
    np.testing.assert_allclose(found.dense[DENSE], dense + 0.3 * dense * dense * (dense_now - dense_then), rtol=1e-5)
    for i, key in enumerate(lookup.unique):
        summed = grads[keys == key].sum(axis=0)
        right = summed + 0.3 * summed * summed * (now[i] - then[i])
        np.testing.assert_allclose(by_key(found)["t", int(key)], right, rtol=1e-5)
    np.testing.assert_array_equal(given.dense[DENSE], dense)


def test_compensation_changes_nothing_where_the_weights_have_not_moved() -> None:
    with make_trainer() as trainer, make_trainer() as other:
        gradients = trainer.gradients(make_batch(16, 0))
        rows = {part.table: (w := trainer.client.pull(part.table, part.lookup).result(), w) for part in gradients.rows}
        moved = compensate(gradients, 0.04, dense={table: (w, w) for table, w in gradients.dense.items()}, rows=rows)
        trainer.apply(moved)
        other.apply(other.gradients(make_batch(16, 0)))
        batch = make_batch(16, 1)
        np.testing.assert_array_equal(trainer.gradients(batch).logits, other.gradients(batch).logits)


def test_damping_divides_by_staleness_from_two_on() -> None:
    assert [damping(staleness) for staleness in range(5)] == pytest.approx([1, 1, 1 / 2, 1 / 3, 1 / 4])


def test_a_rate_is_that_of_dense_parameters_and_of_rows_until_told_otherwise() -> None:
    batch = make_batch(16, 0)
    moved = []
    for rate in (1.0, 0.25):
        with make_trainer() as trainer:
            assert isinstance(trainer.client, LocalClient)
            gradients = trainer.gradients(batch)
            (part,) = gradients.rows
            dense, rows = trainer.client.pull_dense(DENSE).result().copy(), _rows(trainer, part)
            trainer.client.set_rate(rate)
            trainer.apply(gradients)
            moved.append((trainer.client.pull_dense(DENSE).result() - dense, _rows(trainer, part) - rows))
    for whole, quarter in zip(*moved, strict=True):
        assert np.abs(whole).max() > 0
        np.testing.assert_allclose(quarter, whole / 4, rtol=1e-3, atol=1e-7)


def _rows(trainer: Trainer, part: RowGradients) -> np.ndarray:
    return trainer.client.pull(part.table, part.lookup, create=False).result().copy()
