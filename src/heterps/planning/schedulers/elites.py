"""The best schedules that a search has billed so far, from which it draws new ones."""

from __future__ import annotations

import numpy as np

from heterps.planning.cost import Floats, Schedules
from heterps.planning.provisioners.base import Bills

MOST = 12
FADE = 0.8  # weight of an elite relative to the next better one
INFEASIBLE = -1e3
"""Score of an infeasible schedule with no violation: below that of any cost, which is a logarithm."""


class Elites:
    """The best schedules so far, the best first, with their scores."""

    def __init__(self, num_layers: int) -> None:
        self.schedules: Schedules = np.empty((0, num_layers), np.int16)
        self.scores: Floats = np.empty(0)

    def __len__(self) -> int:
        return len(self.schedules)

    @property
    def best(self) -> float:
        """The highest score; -inf while there are no elites."""
        return float(self.scores[0]) if len(self) else -np.inf

    @property
    def weights(self) -> Floats:
        """How much each elite counts; their sum is 1."""
        weights = FADE ** np.arange(len(self))
        shares: Floats = weights / weights.sum()
        return shares

    def remember(self, schedules: Schedules, scores: Floats) -> None:
        """Keep the best of these schedules and the elites."""
        both = np.concatenate([self.scores, scores])
        best = np.argsort(-both, kind="stable")[:MOST]
        self.schedules, self.scores = np.concatenate([self.schedules, schedules])[best], both[best]

    def some(self, num: int, rng: np.random.Generator) -> Schedules:
        """Draw elites [num, N], better ones more often; there must be some."""
        return self.schedules[rng.choice(len(self), size=num, p=self.weights)]


def score(bills: Bills) -> Floats:
    """Score bills, higher is better: -log USD if feasible; infeasible ones are below all of these, by violation."""
    feasible = np.isfinite(bills.usd)
    usd = np.where(feasible, np.maximum(bills.usd, np.finfo(float).tiny), 1.0)
    return np.where(feasible, -np.log(usd), INFEASIBLE - bills.violation)
