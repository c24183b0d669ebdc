"""Metrics of all labels of a job: by name, merged, saved, with weights and labels that are missing."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score

from heterps.config import Schema
from heterps.errors import ConfigError
from heterps.training.metrics.metrics import Metrics, better
from heterps.training.model.objectives import Objectives

RANDOM = np.random.default_rng(1)
N = 3000
CLICK = (RANDOM.random(N) < 0.3).astype(np.float32)
LOGIT = (RANDOM.normal(size=N) + CLICK).astype(np.float32)
RATING = RANDOM.normal(size=N).astype(np.float32)
RATING[::3] = np.nan
PREDICTED = RANDOM.normal(size=N).astype(np.float32)
WEIGHT = RANDOM.integers(0, 4, N).astype(np.float32)
TWO = {"click": {"loss": "binary", "weight": 0.5}, "rating": {"loss": "mse", "missing": "mask"}}
HAS_RATING = ~np.isnan(RATING)


def two(weight: str | None = None, **more: object) -> Metrics:
    metrics = Objectives(Schema(labels=TWO, weight=weight, **more)).metrics()
    columns = [CLICK, RATING, *([WEIGHT] if weight else [])]
    metrics.update(np.stack([LOGIT, PREDICTED], 1), np.stack(columns, 1))
    return metrics


def test_one_label_has_figures_by_their_own_names() -> None:
    metrics = Objectives(Schema()).metrics()
    metrics.update(LOGIT, CLICK)
    assert list(metrics.fields()) == ["log_loss", "auc", "normalised_entropy", "calibration"]
    assert metrics.main == "auc"
    assert metrics["auc"] == metrics.quality == pytest.approx(roc_auc_score(CLICK, LOGIT), abs=1e-4)
    assert metrics.loss == metrics["log_loss"]


def test_several_labels_have_theirs_by_label_and_their_weighted_loss() -> None:
    metrics = two()
    assert metrics["click/auc"] == pytest.approx(roc_auc_score(CLICK, LOGIT), abs=1e-4)
    squared = mean_squared_error(RATING[HAS_RATING], PREDICTED[HAS_RATING])
    assert metrics["rating/rmse"] == pytest.approx(math.sqrt(squared), rel=1e-6)
    click = log_loss(CLICK, 1 / (1 + np.exp(-LOGIT.astype(np.float64))))
    assert metrics["loss"] == metrics.loss == pytest.approx(0.5 * click + squared * HAS_RATING.mean(), rel=1e-6)
    assert metrics.main == "click/auc"
    assert two(label="rating").main == "rating/rmse"
    assert next(iter(two(label="rating").fields())) == "loss"
    assert list(two(label="rating").fields())[1] == "rating/rmse"


def test_weighted_figures_are_those_of_scikit_learn() -> None:
    metrics = two("w")
    assert metrics["click/auc"] == pytest.approx(roc_auc_score(CLICK, LOGIT, sample_weight=WEIGHT), abs=1e-4)
    probability = 1 / (1 + np.exp(-LOGIT.astype(np.float64)))
    assert metrics["click/log_loss"] == pytest.approx(log_loss(CLICK, probability, sample_weight=WEIGHT), rel=1e-6)
    assert metrics["click/calibration"] == pytest.approx((WEIGHT * probability).sum() / WEIGHT[CLICK == 1].sum())
    squared = mean_squared_error(RATING[HAS_RATING], PREDICTED[HAS_RATING], sample_weight=WEIGHT[HAS_RATING])
    assert metrics["rating/rmse"] == pytest.approx(math.sqrt(squared), rel=1e-6)


def test_weights_are_as_good_as_repeated_samples() -> None:
    schema = Schema(num_classes=3, weight="w")
    scores, label = RANDOM.normal(size=(N, 3)).astype(np.float32), RANDOM.integers(0, 3, N).astype(np.float32)
    weighted, repeated = Objectives(schema).metrics(), Objectives(Schema(num_classes=3)).metrics()
    weighted.update(scores, np.stack([label, WEIGHT], 1))
    times = WEIGHT.astype(int)
    repeated.update(np.repeat(scores, times, axis=0), np.repeat(label, times))
    for name, value in repeated.figures().items():
        assert weighted[name] == pytest.approx(value), name


def test_merged_and_restored_metrics_are_those_of_the_whole() -> None:
    whole, merged = two("w"), Objectives(Schema(labels=TWO, weight="w")).metrics()
    scores, labels = np.stack([LOGIT, PREDICTED], 1), np.stack([CLICK, RATING, WEIGHT], 1)
    for part in (slice(0, 1000), slice(1000, N)):
        some, again = (Objectives(Schema(labels=TWO, weight="w")).metrics() for _ in range(2))
        some.update(scores[part], labels[part])
        again.restore(json.loads(json.dumps(some.state())))
        merged.merge(again)
    assert merged.figures() == pytest.approx(whole.figures())
    assert merged.state()["weight"] == whole.state()["weight"] == WEIGHT.sum()


def test_a_batch_without_any_value_of_a_label_changes_nothing() -> None:
    metrics = Objectives(Schema(labels=TWO)).metrics()
    metrics.update(np.zeros((2, 2)), np.array([[1, np.nan], [0, np.nan]]))
    assert math.isnan(metrics["rating/rmse"])
    assert metrics.fields()["rating/rmse"] is None
    assert metrics["loss"] == pytest.approx(0.5 * math.log(2))


@pytest.mark.parametrize(
    ("name", "good", "bad"), [("auc", 0.8, 0.7), ("log_loss", 0.2, 0.3), ("click/auc", 0.8, 0.7), ("r/rmse", 1.0, 1.1)]
)
def test_which_value_is_better(name: str, good: float, bad: float) -> None:
    assert better(name, good, bad)
    assert not better(name, bad, good)
    assert not better(name, good, good)
    assert better(name, bad, math.nan)
    assert not better(name, math.nan, bad)


@pytest.mark.parametrize("name", ["calibration", "mean_label", "unknown"])
def test_figures_without_a_better_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' is not a metric of which more or less is better.*auc"):
        better(name, 1, 2)
