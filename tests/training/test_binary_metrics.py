"""Streaming metrics against scikit-learn, whatever the split, the order and the skew."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score

from heterps.errors import DataError, ModelError, NotFinite
from heterps.training.metrics.binary import NUM_BINS, BinaryMetrics


def measure(logits: object, labels: object) -> BinaryMetrics:
    metrics = BinaryMetrics()
    metrics.update(np.asarray(logits, np.float32), np.asarray(labels, np.float32))
    return metrics


def clicks(num_samples: int, rate: float, spread: float, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Predictions of a good model of clicks at about `rate`, and labels drawn from them."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(math.log(rate / (1 - rate)), spread, num_samples)
    return logits.astype(np.float32), (generator.random(num_samples) < 1 / (1 + np.exp(-logits))).astype(np.float32)


samples = st.lists(
    st.tuples(st.floats(-1e6, 1e6, width=32) | st.floats(-8, 8, width=32) | st.integers(-3, 3), st.booleans()),
    min_size=1,
    max_size=60,
)


@given(samples)
@settings(max_examples=150)
def test_auc_is_within_its_stated_error_of_scikit_learn(data: list[tuple[float, bool]]) -> None:
    logits, labels = map(np.array, zip(*data, strict=True))
    metrics = measure(logits, labels)
    if labels.all() or not labels.any():
        assert math.isnan(metrics.auc)
        assert math.isnan(metrics.auc_error)
    else:
        assert abs(metrics.auc - roc_auc_score(labels, logits)) <= metrics.auc_error + 1e-12


@given(st.lists(st.tuples(st.integers(-40, 40), st.booleans()), min_size=2, max_size=60))
@settings(max_examples=100)
def test_auc_with_ties_and_distinct_bins_is_exact(data: list[tuple[int, bool]]) -> None:
    logits, labels = map(np.array, zip(*data, strict=True))
    if labels.any() and not labels.all():
        assert measure(logits / 4, labels).auc == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)


@pytest.mark.parametrize("rate", [0.5, 0.03, 0.001])
@pytest.mark.parametrize("spread", [0.2, 1.0, 3.0])
def test_auc_of_skewed_clicks_is_exact_to_1e_4(rate: float, spread: float) -> None:
    logits, labels = clicks(200_000, rate, spread, seed=1)
    metrics = measure(logits, labels)
    assert abs(metrics.auc - roc_auc_score(labels, logits)) < 1e-5
    assert metrics.auc_error < (1e-3 if spread < 1 else 3e-4)


def test_log_loss_calibration_and_accuracy_equal_their_definitions() -> None:
    logits, labels = clicks(50_000, 0.2, 1.5, seed=2)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    metrics = measure(logits, labels)
    rate = labels.mean()
    base = log_loss(labels, np.full(len(labels), rate, np.float64))
    assert metrics.log_loss == pytest.approx(log_loss(labels, probabilities), rel=1e-10)
    assert metrics.normalised_entropy == pytest.approx(log_loss(labels, probabilities) / base, rel=1e-6)
    assert metrics.calibration == pytest.approx(probabilities.mean() / rate, rel=1e-6)
    assert metrics.accuracy == np.mean((logits >= 0) == (labels == 1))
    assert (metrics.count, metrics.positives) == (50_000, labels.sum())


def test_extreme_logits_neither_overflow_nor_vanish() -> None:
    metrics = measure([3e38, -3e38, 800, -800], [1, 0, 0, 1])
    assert metrics.log_loss == pytest.approx((800 + 800) / 4)
    assert metrics.auc == 0.75
    assert metrics.calibration == pytest.approx(1.0)


@given(samples, st.integers(0, 60), st.randoms())
@settings(max_examples=100)
def test_merged_parts_in_any_order_equal_the_whole(data: list[tuple[float, bool]], cut: int, random: object) -> None:
    whole = measure(*zip(*data, strict=True))
    shuffled = list(data)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    parts = [measure(*zip(*part, strict=True)) for part in (shuffled[cut:], shuffled[:cut]) if part]
    merged = BinaryMetrics()
    for part in parts:
        merged.merge(part)
    for name in ("count", "positives", "auc", "auc_error", "accuracy"):
        np.testing.assert_equal(getattr(merged, name), getattr(whole, name))
    for name in ("log_loss", "normalised_entropy", "calibration"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-12)


@given(samples, samples)
@settings(max_examples=50)
def test_metrics_go_on_from_their_state_as_if_never_stopped(
    first: list[tuple[float, bool]], second: list[tuple[float, bool]]
) -> None:
    straight = measure(*zip(*first, strict=True))
    resumed = BinaryMetrics.from_state(json.loads(json.dumps(straight.state())))
    for metrics in (straight, resumed):
        metrics.update(*(np.array(part, np.float32) for part in zip(*second, strict=True)))
    assert resumed.state() == straight.state()


def test_a_state_of_other_bins_is_refused() -> None:
    with pytest.raises(ValueError, match=f"counted in 10 bins, this heterps has {NUM_BINS}"):
        BinaryMetrics.from_state(BinaryMetrics().state() | {"num_bins": 10})


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_are_never_counted(bad: float) -> None:
    metrics = measure([0.5], [1])
    before = metrics.state()
    with pytest.raises(NotFinite, match=r"output for sample 2 of a batch of 3 is (nan|-?inf).*learning rate") as error:
        metrics.update(np.array([0.1, 0.2, bad], np.float32), np.array([0, 1, 1], np.float32))
    assert isinstance(error.value, ModelError)
    assert metrics.state() == before


@pytest.mark.parametrize("bad", [0.5, 2.0, -1.0, math.nan])
def test_labels_other_than_0_and_1_are_refused(bad: float) -> None:
    with pytest.raises(DataError, match=r"label of sample 1 of a batch of 2 is .*; allowed: 0 and 1"):
        measure([0.1, 0.2], [1, bad])


def test_undefined_metrics_are_nan_and_not_a_guess() -> None:
    for name in ("auc", "auc_error", "log_loss", "normalised_entropy", "calibration", "accuracy"):
        assert math.isnan(getattr(BinaryMetrics(), name)), name
    one_class = measure([0.5, -0.5], [0, 0])
    for name in ("auc", "normalised_entropy", "calibration"):
        assert math.isnan(getattr(one_class, name)), name
    assert one_class.accuracy == 0.5


def test_any_dtype_and_shape_of_a_batch_is_counted_alike() -> None:
    logits, labels = clicks(100, 0.3, 1.0, seed=3)
    expected = measure(logits, labels).state()
    for scores, truth in (
        (logits[:, None], labels[:, None]),
        (logits.astype(np.float64), labels.astype(np.int64)),
        (np.repeat(logits, 2)[::2], labels.astype(bool)),
    ):
        metrics = BinaryMetrics()
        metrics.update(scores, truth)
        assert metrics.state() == expected
    with pytest.raises(ValueError, match="100 logits and 99 labels"):
        BinaryMetrics().update(logits, labels[1:])
