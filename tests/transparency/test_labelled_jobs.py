"""BSP is as one process for every kind of label, with weights, several labels and labels that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd_models import COLUMNS
from test_odd_jobs import assert_as_one_process, odd_job
from transparent import train

from heterps.config import Job

N = 240
RANDOM = np.random.default_rng(5)
VALUES: dict[str, Any] = {
    "click": RANDOM.integers(0, 2, N),
    "rating": RANDOM.normal(3, 1, N),
    "count": RANDOM.poisson(2, N),
    "class": RANDOM.integers(0, 4, N),
    "some": [None if n % 3 == 0 else float(n % 5) for n in range(N)],
    "w": RANDOM.uniform(0, 2, N),
    "ones": np.ones(N),
}
CLICK_AND_RATING = {"click": {"loss": "binary", "weight": 0.5}, "rating": "huber"}


def label_job(folder: Path, factory: str, labels: dict[str, Any], weight: str | None = None) -> Job:
    columns = {name: VALUES[name] for name in (*labels, *([weight] if weight else []))}
    schema = COLUMNS.model_dump(exclude={"label"}) | {"labels": labels, "weight": weight}
    return odd_job(folder, factory, N, columns=columns, data={"columns": schema | {"label": next(iter(labels))}})


@pytest.mark.parametrize(
    ("labels", "factory"),
    [
        ({"rating": "mse"}, "plain"),
        ({"rating": {"loss": "huber", "delta": 0.5}}, "plain"),
        ({"count": "poisson"}, "plain"),
        ({"class": {"loss": "classes", "num_classes": 4}}, "four_scores"),
        ({"some": {"loss": "mse", "missing": "mask"}}, "plain"),
    ],
    ids=["mse", "huber", "poisson", "classes", "missing"],
)
def test_every_kind_of_label_over_two_stages(tmp_path: Path, labels: dict[str, Any], factory: str) -> None:
    job = label_job(tmp_path, factory, labels, weight="w" if "rating" in labels else None)
    one, other = assert_as_one_process(job, tmp_path, (2, 1), (3,))
    assert other.outcome.train.figures() == pytest.approx(one.outcome.train.figures(), rel=1e-5)


@pytest.mark.parametrize("factory", ["two_heads", "own_heads"])
@pytest.mark.parametrize(("counts", "cuts"), [((3,), ()), ((2, 1, 2), (3, 4))], ids=["one stage", "three stages"])
def test_several_labels_whose_outputs_come_from_different_stages(tmp_path: Path, factory: str, counts, cuts) -> None:
    job = label_job(tmp_path, factory, CLICK_AND_RATING, weight="w")
    one, other = assert_as_one_process(job, tmp_path, counts, cuts)
    assert {"loss", "click/auc", "rating/mae"} <= one.outcome.train.figures().keys()
    assert other.outcome.train.figures() == pytest.approx(one.outcome.train.figures(), rel=1e-5)


def test_labels_that_are_missing_among_several(tmp_path: Path) -> None:
    labels = {"click": "binary", "rating": "mse", "some": {"loss": "poisson", "missing": "mask"}}
    job = label_job(tmp_path, "three_heads", labels)
    assert_as_one_process(job, tmp_path, (2, 2), (3,))


def test_weights_of_one_are_no_weights(tmp_path: Path) -> None:
    plain = train(label_job(tmp_path, "plain", {"click": "binary"}), tmp_path / "plain")
    weighted = train(label_job(tmp_path, "plain", {"click": "binary"}, weight="ones"), tmp_path / "weighted")
    np.testing.assert_allclose(weighted.losses, plain.losses, rtol=1e-6)
