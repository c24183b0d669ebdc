"""Rankings by user against plain loops over users, and over all orders of samples with equal scores."""

from __future__ import annotations

import math
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from heterps.config import Schema
from heterps.data.batch import NO_USER
from heterps.training.metrics.metrics import better
from heterps.training.metrics.ranking import RankingMetrics
from heterps.training.model.objectives import Objectives

RANDOM = np.random.default_rng(4)
N = 2000
USERS = RANDOM.integers(1, 150, N).astype(np.uint64)
SCORES = RANDOM.integers(0, 12, N).astype(np.float32)  # many ties
LABELS = (RANDOM.random(N) < 0.3).astype(np.float32)
WEIGHTS = RANDOM.integers(1, 4, N).astype(np.float32)


def ranked(top_k: tuple[int, ...] = (3, 10), **more: Any) -> RankingMetrics:
    metrics = RankingMetrics(top_k, **more)
    metrics.update(USERS, SCORES, LABELS)
    return metrics


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_gauc_is_the_mean_of_the_users_aucs_by_impressions(weights: np.ndarray | None) -> None:
    total = impressions = 0.0
    for user in np.unique(USERS):
        mine = user == USERS
        if 0 < LABELS[mine].mean() < 1:
            of_user = None if weights is None else weights[mine]
            size = mine.sum() if weights is None else weights[mine].sum()
            total += size * roc_auc_score(LABELS[mine], SCORES[mine], sample_weight=of_user)
            impressions += size
    metrics = RankingMetrics((10,))
    metrics.update(USERS, SCORES, LABELS, weights)
    assert metrics.figures()["gauc"] == pytest.approx(total / impressions)


@pytest.mark.parametrize("k", [1, 3, 10, 1000])
def test_ndcg_is_the_mean_over_users_of_that_of_scikit_learn(k: int) -> None:
    gains = RANDOM.integers(0, 5, N).astype(np.float32)
    wanted = [
        ndcg_score(gains[None, mine], SCORES[None, mine], k=k)
        for mine in (user == USERS for user in np.unique(USERS))
        if gains[mine].any() and mine.sum() > 1
    ]
    metrics = RankingMetrics((k,), is_binary=False)
    alone = np.isin(USERS, [user for user in np.unique(USERS) if (user == USERS).sum() == 1])
    metrics.update(USERS[~alone], SCORES[~alone], gains[~alone])
    assert metrics.figures() == pytest.approx({"users": len(np.unique(USERS[~alone])), f"ndcg@{k}": np.mean(wanted)})


def test_figures_are_means_over_all_orders_of_equal_scores() -> None:
    scores, labels, k = [5, 2, 2, 2, 2, 1], [0, 1, 0, 1, 0, 1], 3
    hits, gains = [], []
    for order in permutations(range(6)):
        if all(scores[a] >= scores[b] for a, b in pairwise(order)):
            first = [labels[i] for i in order[:k]]
            hits.append(any(first))
            gains.append(sum(label / math.log2(rank + 2) for rank, label in enumerate(first)))
    best = sum(1 / math.log2(rank + 2) for rank in range(3))
    metrics = RankingMetrics((k,))
    metrics.update(np.full(6, 7, np.uint64), np.array(scores, np.float32), np.array(labels, np.float32))
    assert metrics.figures()["hit_rate@3"] == pytest.approx(np.mean(hits))
    assert metrics.figures()["ndcg@3"] == pytest.approx(np.mean(gains) / best)


def test_hit_rate_is_a_share_of_the_users_who_have_something_to_find() -> None:
    users = np.array([1, 1, 1, 2, 2, 3], np.uint64)
    metrics = RankingMetrics((1, 2))
    metrics.update(users, np.array([3, 2, 1, 1, 2, 5], np.float32), np.array([1, 0, 0, 1, 0, 0], np.float32))
    assert metrics.figures()["hit_rate@1"] == 0.5
    assert metrics.figures()["hit_rate@2"] == 1.0
    assert metrics.figures()["users"] == 3


def test_order_and_division_do_not_matter() -> None:
    merged, order = RankingMetrics((3, 10)), RANDOM.permutation(N)
    for part in np.array_split(order, 7):
        some = RankingMetrics((3, 10))
        some.update(USERS[part], SCORES[part], LABELS[part])
        merged.merge(some)
    assert merged.figures() == pytest.approx(ranked().figures())


def test_beyond_a_number_of_samples_whole_users_are_dropped_and_the_rest_is_exact() -> None:
    few = ranked(most_samples=600)
    assert few.num_samples <= 600
    kept = np.unique(np.concatenate([part.users for part in few._parts]))
    assert 10 < len(kept) < 90
    exact = RankingMetrics((3, 10))
    mine = np.isin(USERS, kept)
    exact.update(USERS[mine], SCORES[mine], LABELS[mine])
    assert few.figures() == pytest.approx(exact.figures())
    whole = ranked(most_samples=600)
    whole.merge(ranked())
    halves = ranked()
    halves.merge(few)
    assert set(np.concatenate([part.users for part in halves._parts]).tolist()) == set(kept.tolist())


def test_samples_without_a_user_are_left_out() -> None:
    users = np.where(np.arange(N) % 5 == 0, NO_USER, USERS).astype(np.uint64)
    metrics, other = RankingMetrics((3,)), RankingMetrics((3,))
    metrics.update(users, SCORES, LABELS)
    there = users != NO_USER
    other.update(users[there], SCORES[there], LABELS[there])
    assert metrics.figures() == other.figures()


def test_figures_of_labels_that_cannot_be_ranked_are_nan() -> None:
    metrics = RankingMetrics((3,), is_binary=False)
    metrics.update(USERS, SCORES, LABELS - 0.5)
    assert math.isnan(metrics.figures()["ndcg@3"])
    alike = RankingMetrics((3,))
    alike.update(USERS, SCORES, np.zeros(N, np.float32))
    assert all(math.isnan(alike.figures()[name]) for name in ("gauc", "ndcg@3", "hit_rate@3"))


def test_a_job_ranks_every_label_that_has_an_order() -> None:
    labels = {"click": "binary", "rating": {"loss": "mse", "missing": "mask"},
              "kind": {"loss": "classes", "num_classes": 3}}  # fmt: skip
    objectives = Objectives(Schema(labels=labels, user="user", top_k=(3,)))
    rating = np.where(np.arange(N) % 2 == 0, SCORES[::-1], np.nan)
    scores = np.concatenate([np.stack([SCORES, -SCORES], 1), np.zeros((N, 3))], axis=1)
    columns = np.stack([LABELS, rating, np.zeros(N)], 1)
    metrics, unranked = objectives.metrics(), objectives.metrics()
    metrics.update(scores, columns, USERS)
    unranked.update(scores, columns)
    assert metrics["click/gauc"] == pytest.approx(ranked((3,)).figures()["gauc"])
    only = RankingMetrics((3,), is_binary=False)
    only.update(USERS[::2], -SCORES[::2], rating[::2].astype(np.float32))
    assert metrics["rating/ndcg@3"] == pytest.approx(only.figures()["ndcg@3"])
    assert set(objectives.metrics().names()) == set(unranked.names()) == set(metrics.figures())
    more = set(metrics.figures()) - set(unranked.figures())
    assert more == {"click/users", "click/gauc", "click/ndcg@3", "click/hit_rate@3", "rating/users", "rating/ndcg@3"}
    assert better("click/ndcg@3", 0.4, 0.3)
