"""Metrics of a ranking by user: how well the model orders the samples of each user, whatever it says across users.

    gauc        mean over users of the AUC of a user's samples, weighted by their number (or weights); users whose
                labels are all equal have none and are left out
    ndcg@k      mean over users of DCG@k / best DCG@k, where DCG@k adds label / log2(1 + rank) over the k highest
                scores; users without a label above 0 are left out
    hit_rate@k  share of the users with a label 1 that have one among their k highest scores

Samples of equal scores are in no order: each figure is its mean over all orders of them, so that it does not depend on
the order of the data. Of labels that are not 0 or 1 only NDCG is defined, and only where none is below 0.

Figures are exact: users' samples may be anywhere in the data, so all are kept until the end, 20 bytes for each. Beyond
MOST_SAMPLES half of the users is dropped, by a hash of their keys, as often as needed; what remains is a random sample
of whole users, and `users` tells how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps.data.batch import NO_USER

Floats = NDArray[np.float64]
MOST_SAMPLES = 20_000_000
"""Number of samples that are kept: 400 MB, and a few times that while figures are computed."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Seen(NamedTuple):
    """Samples of users, in any order."""

    users: NDArray[np.uint64]
    scores: NDArray[np.float32]
    labels: NDArray[np.float32]
    weights: NDArray[np.float32]

    def take(self, rows: NDArray[Any]) -> Seen:
        """The samples of these rows, given by their numbers or by a mask."""
        return Seen(self.users[rows], self.scores[rows], self.labels[rows], self.weights[rows])


class RankingMetrics:
    """Update it with batches, merge it with others: the same samples give the same metrics, in any order."""

    def __init__(self, top_k: Sequence[int], *, is_binary: bool = True, most_samples: int = MOST_SAMPLES) -> None:
        self._top_k, self._is_binary, self._most = tuple(top_k), is_binary, most_samples
        self._parts: list[Seen] = []
        self.num_samples = 0
        self._figures: dict[str, float] | None = None  # once they are computed
        self._halvings = 0  # how often half of the users was dropped

    def update(
        self,
        users: NDArray[np.uint64],
        scores: NDArray[np.float32],
        labels: NDArray[np.float32],
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        """Keep the samples of a batch, except those whose user is not known."""
        weights = np.ones(len(labels), np.float32) if weights is None else weights
        known = users != NO_USER
        self._add(Seen(users[known], *(np.asarray(v, np.float32)[known] for v in (scores, labels, weights))))

    def merge(self, other: RankingMetrics) -> None:
        """Keep what `other` has kept as well."""
        while self._halvings < other._halvings:
            self._halve()
        for part in other._parts:
            self._add(part)

    def _add(self, part: Seen) -> None:
        part = _kept(part, self._halvings)
        self._parts.append(part)
        self._figures = None
        self.num_samples += len(part.users)
        while self.num_samples > self._most and self._halvings < 64:
            self._halve()

    def _halve(self) -> None:
        self._halvings += 1
        self._parts = [_kept(part, self._halvings) for part in self._parts]
        self.num_samples = sum(len(part.users) for part in self._parts)

    def figures(self) -> dict[str, float]:
        """All figures by name, of the samples kept so far; NaN where no user has them."""
        if self._figures is None:
            self._figures = self._compute()
        return dict(self._figures)

    @property
    def fields(self) -> list[str]:
        """Names of the figures."""
        gauc, hit_rates = (["gauc"], ["hit_rate"]) if self._is_binary else ([], [])
        return ["users", *gauc, *(f"{name}@{k}" for k in self._top_k for name in ("ndcg", *hit_rates))]

    def _compute(self) -> dict[str, float]:
        seen = Seen(*(np.concatenate(column) for column in zip(*self._parts, strict=True)))
        seen = seen.take(np.lexsort((-seen.scores, seen.users)))
        starts = np.flatnonzero(np.r_[True, seen.users[1:] != seen.users[:-1]])
        ties = _Ties(starts, seen.scores)
        found = {"users": float(len(starts))}
        if self._is_binary:
            found["gauc"] = _gauc(ties, seen.labels, seen.weights)
        for k in self._top_k:
            found[f"ndcg@{k}"] = _ndcg(ties, seen.labels, k)
            if self._is_binary:
                found[f"hit_rate@{k}"] = _hit_rate(ties, seen.labels, k)
        return found


class _Ties:
    """Samples sorted by user, then by falling score: which of them are of one user, and which have the same score.

    users   0 0 0 0 0 1 1 1        tie        0 1 1 1 2 3 3 4       number of the group of equal scores
    scores  9 7 7 7 2 5 5 1        first      0 1 1 1 4 0 0 2       rank of the group's first sample, from 0 on
                                   size       1 3 3 3 1 2 2 1
    """

    def __init__(self, starts: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        num = len(scores)
        self.lengths = np.diff(np.r_[starts, num])
        self.user = np.repeat(np.arange(len(starts)), self.lengths)
        begins = np.r_[True, scores[1:] != scores[:-1]]
        begins[starts] = True
        at = np.flatnonzero(begins)
        sizes = np.diff(np.r_[at, num])
        self.tie = np.cumsum(begins) - 1
        self.user_of_tie = self.user[at]
        self.first = at - starts[self.user_of_tie]
        self.size = sizes

    def by_tie(self, values: NDArray[np.generic]) -> Floats:
        """Sums of values over samples of equal scores."""
        return np.bincount(self.tie, values, len(self.size)).astype(np.float64)

    def by_user(self, values_of_ties: Floats) -> Floats:
        """Sums over a user's ties."""
        return np.bincount(self.user_of_tie, values_of_ties, len(self.lengths)).astype(np.float64)


def _kept(part: Seen, halvings: int) -> Seen:
    """The samples of users that remain after half of the users was dropped so often."""
    if not halvings:
        return part
    with np.errstate(over="ignore"):
        hashes = part.users * _MIX
    stays = (hashes >> np.uint64(64 - halvings)) == 0 if halvings < 64 else np.zeros(len(hashes), np.bool_)
    return part.take(stays)


def _gauc(ties: _Ties, labels: NDArray[np.float32], weights: NDArray[np.float32]) -> float:
    positive, negative = ties.by_tie(weights * labels), ties.by_tie(weights * (1 - labels))
    of_user = ties.by_user(negative)
    above = np.cumsum(negative)  # over all ties: take away those of users before, and of this one
    before = np.cumsum(of_user) - of_user
    below = of_user[ties.user_of_tie] - (above - before[ties.user_of_tie])
    right = ties.by_user(positive * (below + negative / 2))
    positives = ties.by_user(positive)
    pairs = positives * of_user
    has_both = pairs > 0
    total = (positives + of_user)[has_both]
    return float((right[has_both] / pairs[has_both] * total).sum() / total.sum()) if has_both.any() else math.nan


def _ndcg(ties: _Ties, labels: NDArray[np.float32], k: int) -> float:
    """Normalised discounted cumulative gain, with gains that are the labels, and the mean over orders of ties."""
    if (labels < 0).any():
        return math.nan
    longest = int(ties.lengths.max())
    discounts = np.where(np.arange(longest) < k, 1 / np.log2(np.arange(longest) + 2), 0.0)
    summed = np.r_[0.0, np.cumsum(discounts)]
    share = (summed[ties.first + ties.size] - summed[ties.first]) / ties.size  # of a sample, whatever its place
    gained = ties.by_user(ties.by_tie(labels) * share)
    best_order = np.lexsort((-labels, ties.user))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(ties.lengths) - ties.lengths, ties.lengths)
    best = np.bincount(ties.user, labels[best_order] * discounts[rank], len(ties.lengths))
    has_gain = best > 0
    return float((gained[has_gain] / best[has_gain]).mean()) if has_gain.any() else math.nan


def _hit_rate(ties: _Ties, labels: NDArray[np.float32], k: int) -> float:
    """The chance that a label 1 is among the first k, over orders of ties, and its mean over users who have one."""
    positives = ties.by_tie(labels)
    places = np.clip(k - ties.first, 0, ties.size)  # of this tie among the first k
    missed = np.ones(len(ties.size))
    for place in range(int(places.max(initial=0))):  # draw one sample after the other, none of label 1
        drawn = place < places
        left = (ties.size - place)[drawn]
        missed[drawn] *= np.maximum(left - positives[drawn], 0) / left
    none = np.ones(len(ties.lengths))
    np.multiply.at(none, ties.user_of_tie, missed)
    has_one = ties.by_user(positives) > 0
    return float((1 - none[has_one]).mean()) if has_one.any() else math.nan
