"""Metrics of more than two classes against scikit-learn, whatever the split and the order."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss

from heterps.errors import DataError, ModelError, NotFinite
from heterps.training.metrics.classes import ClassMetrics

CLASSES = 4


def measure(scores: object, labels: object) -> ClassMetrics:
    metrics = ClassMetrics(CLASSES)
    metrics.update(np.asarray(scores, np.float32).reshape(-1, CLASSES), np.asarray(labels, np.float32))
    return metrics


def draw(num_samples: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scores of a model that is often right, and labels of classes that are not equally frequent."""
    random = np.random.default_rng(seed)
    labels = random.choice(CLASSES, num_samples, p=[0.4, 0.3, 0.2, 0.1])
    scores = random.normal(size=(num_samples, CLASSES))
    scores[np.arange(num_samples), labels] += 1.5
    return scores.astype(np.float32), labels.astype(np.float32)


def softmax(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    powers = np.exp(scores.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


def test_accuracy_log_loss_and_normalised_entropy_equal_their_definitions() -> None:
    scores, labels = draw(5000)
    metrics = measure(scores, labels)
    every = list(range(CLASSES))
    expected = log_loss(labels, softmax(scores), labels=every)
    shares = np.bincount(labels.astype(int)) / len(labels)
    base = log_loss(labels, np.tile(shares, (len(labels), 1)), labels=every)
    assert metrics.count == 5000
    assert metrics.accuracy == accuracy_score(labels, scores.argmax(axis=1))
    assert metrics.log_loss == pytest.approx(expected, rel=1e-10)
    assert metrics.normalised_entropy == pytest.approx(expected / base, rel=1e-10)


def test_extreme_scores_neither_overflow_nor_vanish() -> None:
    metrics = measure([[3e38, -3e38, 0, 0], [800, 0, 0, 0]], [0, 1])
    assert metrics.log_loss == pytest.approx(400)
    assert metrics.accuracy == 0.5


def test_of_equal_scores_the_lowest_class_is_taken() -> None:
    assert measure([[1, 1, 0, 0], [1, 1, 0, 0]], [0, 1]).accuracy == 0.5


samples = st.lists(
    st.tuples(st.lists(st.floats(-50, 50, width=32), min_size=CLASSES, max_size=CLASSES), st.integers(0, CLASSES - 1)),
    min_size=1,
    max_size=30,
)


@given(samples, st.integers(0, 30), st.randoms())
@settings(max_examples=60)
def test_merged_parts_in_any_order_equal_the_whole(
    data: list[tuple[list[float], int]], cut: int, random: object
) -> None:
    whole = measure(*zip(*data, strict=True))
    shuffled = list(data)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    merged = ClassMetrics(CLASSES)
    for part in (shuffled[cut:], shuffled[:cut]):
        if part:
            merged.merge(measure(*zip(*part, strict=True)))
    assert (merged.count, merged.accuracy) == (whole.count, whole.accuracy)
    for name in ("log_loss", "normalised_entropy"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-9, atol=1e-12)


def test_metrics_go_on_from_their_state_as_if_never_stopped() -> None:
    straight = measure(*draw(100))
    resumed = ClassMetrics.from_state(json.loads(json.dumps(straight.state())))
    for metrics in (straight, resumed):
        metrics.update(*draw(50, seed=1))
    assert resumed.state() == straight.state()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_never_counted(bad: float) -> None:
    metrics = measure([1, 2, 3, 4], [1])
    before = metrics.state()
    with pytest.raises(NotFinite, match=r"score of class 2 for sample 1 of a batch of 2 is .*learning rate") as error:
        metrics.update(np.array([[0, 0, 0, 0], [0, 0, bad, 0]]), np.array([0, 1]))
    assert isinstance(error.value, ModelError)
    assert metrics.state() == before


@pytest.mark.parametrize("bad", [0.5, 4.0, -1.0, math.nan])
def test_labels_that_are_no_class_are_refused(bad: float) -> None:
    with pytest.raises(DataError, match=r"label of sample 1 of a batch of 2 is .*; allowed: 0 to 3"):
        measure(np.zeros((2, CLASSES)), [1, bad])


def test_scores_of_another_number_of_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores \[2, 3\] and 2 labels of 4 classes"):
        ClassMetrics(CLASSES).update(np.zeros((2, 3)), np.zeros(2))


def test_undefined_metrics_are_nan_and_not_a_guess() -> None:
    for name in ("accuracy", "log_loss", "normalised_entropy"):
        assert math.isnan(getattr(ClassMetrics(CLASSES), name)), name
    assert math.isnan(measure([1, 0, 0, 0], [0]).normalised_entropy)
