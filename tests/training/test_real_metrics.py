"""Metrics of predicted numbers against scikit-learn, with and without weights, whatever the split."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import (
    mean_absolute_error,
    mean_poisson_deviance,
    mean_squared_error,
    r2_score,
)

from heterps.errors import DataError, NotFinite
from heterps.training.metrics.real import HuberMetrics, PoissonMetrics, SquaredMetrics

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.normal(1e6, 2.0, 500)  # a mean that would swallow the variance if it were computed from sums
SCORES = LABELS + RANDOM.normal(0.1, 1.0, 500)
COUNTS = RANDOM.poisson(2.0, 500).astype(np.float64)
LOG_RATES = RANDOM.normal(0.5, 0.3, 500)
WEIGHTS = RANDOM.uniform(0, 3, 500)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_errors_equal_those_of_scikit_learn(weights: np.ndarray | None) -> None:
    metrics = SquaredMetrics()
    metrics.update(SCORES, LABELS, weights)
    squared = mean_squared_error(LABELS, SCORES, sample_weight=weights)
    assert metrics.loss == pytest.approx(squared, rel=1e-9)
    assert metrics.rmse == pytest.approx(math.sqrt(squared), rel=1e-9)
    assert metrics.mae == pytest.approx(mean_absolute_error(LABELS, SCORES, sample_weight=weights), rel=1e-9)
    assert metrics.r2 == pytest.approx(r2_score(LABELS, SCORES, sample_weight=weights), rel=1e-6)
    assert metrics.mean_label == pytest.approx(np.average(LABELS, weights=weights), rel=1e-12)
    assert metrics.mean_prediction == pytest.approx(np.average(SCORES, weights=weights), rel=1e-12)
    assert metrics.count == 500


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_counts_are_predicted_by_the_power_of_the_output(weights: np.ndarray | None) -> None:
    metrics = PoissonMetrics()
    metrics.update(LOG_RATES, COUNTS, weights)
    rates = np.exp(LOG_RATES)
    assert metrics.deviance == pytest.approx(mean_poisson_deviance(COUNTS, rates, sample_weight=weights), rel=1e-9)
    assert metrics.loss == pytest.approx(np.average(rates - COUNTS * LOG_RATES, weights=weights), rel=1e-9)
    assert metrics.mae == pytest.approx(mean_absolute_error(COUNTS, rates, sample_weight=weights), rel=1e-9)
    assert metrics.mean_prediction == pytest.approx(np.average(rates, weights=weights), rel=1e-9)


def test_huber_is_a_square_near_zero_and_a_line_beyond_delta() -> None:
    metrics = HuberMetrics(delta=2.0)
    metrics.update(np.array([1.0, 5.0, -3.0]), np.zeros(3))
    assert metrics.loss == pytest.approx((0.5 + 2 * (5 - 1) + 2 * (3 - 1)) / 3)


@pytest.mark.parametrize("kind", [SquaredMetrics, lambda: HuberMetrics(0.3), PoissonMetrics])
def test_parts_merge_to_the_whole_and_survive_json(kind) -> None:
    scores, labels = LOG_RATES, COUNTS
    whole, merged = kind(), kind()
    whole.update(scores, labels, WEIGHTS)
    for part in (slice(0, 3), slice(3, 3), slice(3, 400), slice(400, 500)):
        other = kind()
        other.update(scores[part], labels[part], WEIGHTS[part])
        merged.merge(type(other).from_state(json.loads(json.dumps(other.state()))))
    assert merged.count == whole.count
    for name in whole.FIELDS:
        assert getattr(merged, name) == pytest.approx(getattr(whole, name), rel=1e-9), name


def test_what_is_not_finite_is_not_counted() -> None:
    metrics = SquaredMetrics()
    with pytest.raises(NotFinite, match=r"output for sample 1 of a batch of 2 is nan\. Training has diverged"):
        metrics.update(np.array([0, math.nan]), np.zeros(2))
    with pytest.raises(DataError, match=r"label of sample 0 of a batch of 1 is inf"):
        metrics.update(np.zeros(1), np.array([math.inf]))
    with pytest.raises(NotFinite, match=r"\(the logarithm of a rate\) for sample 0 .* is 1000"):
        PoissonMetrics().update(np.array([1000.0]), np.zeros(1))
    assert metrics.count == 0


def test_undefined_figures_are_nan() -> None:
    empty, alike = SquaredMetrics(), SquaredMetrics()
    assert all(math.isnan(getattr(empty, name)) for name in empty.FIELDS)
    alike.update(np.zeros(3), np.ones(3))
    assert math.isnan(alike.r2)
    assert alike.rmse == 1
