"""Train one policy of the learned scheduler by REINFORCE, from its initial guess by the profile to convergence.

    theta += eta * mean_n sum_l grad log P(a_l | a_<l) * (R_n - b)          b <- (1 - gamma) b + gamma * mean R

The reward R is the rank of a schedule's score among the last WINDOW scores, from -1 (worst) to 1 (best): costs span
orders of magnitude at first and are within a percent of each other at the end, and ranks distinguish both equally well.
Each bill is used several times: by several clipped steps per batch (as in PPO), by imitation of the best schedules
(the elites), and by draws that keep a part of an elite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from heterps.planning.cost import Floats, Ints, Schedules
from heterps.planning.schedulers.features import Features
from heterps.planning.schedulers.policy import Cell, SchedulePolicy
from heterps.planning.schedulers.random_plans import pick_runs
from heterps.threads import torch_threads


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of the learner, chosen by experiment: see docs/decisions/0013-learned-scheduler.md."""

    hidden: int = 32
    width: int = 16
    trust: float = 1.0
    stay: float = 1.0
    lr: float = 1e-2
    gamma: float = 0.2  # weight of the newest batch in the baseline
    steps: int = 3  # gradient steps per batch
    clip: float = 0.2  # largest relative change of a schedule's probability per batch
    entropy: float = 0.01
    window: int = 256
    elites: int = 12
    imitate: float = 2.0
    fade: float = 0.8  # weight of an elite relative to the next better one
    partial: float = 0.5  # share of draws that keep a part of an elite
    temperature: float = 2.0  # temperature of partial draws


class Learner:
    """A policy in training, with the best schedules that it has seen (the elites)."""

    def __init__(self, features: Features, cell: Cell, settings: Settings, seed: int) -> None:
        self._settings = s = settings
        with torch_threads(1), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._policy = SchedulePolicy(features, cell, s.hidden, s.width, s.trust, s.stay)
            self._adam = torch.optim.Adam(self._policy.parameters(), lr=s.lr)
        self._generator = torch.Generator().manual_seed(seed)
        self._rng = np.random.default_rng(seed)
        self._baseline = 0.0
        self._recent = np.empty(0)
        num_layers = features.runs.shape[0]
        self.elites: Schedules = np.empty((0, num_layers), np.int16)
        self.scores: Floats = np.empty(0)  # of the elites, the best first

    @property
    def best(self) -> float:
        return float(self.scores[0]) if len(self.scores) else -np.inf

    def most_likely(self) -> Schedules:
        """Return the most likely schedule [1, N]."""
        return self._sample(np.full((1, self.elites.shape[1]), -1), np.zeros(1))

    def draw(self, num: int, temperature: float) -> Schedules:
        """Draw schedules [num, N]: the most likely one, some from the policy, some elites with a part drawn again."""
        num_layers = self.elites.shape[1]
        kept = np.full((num, num_layers), -1)
        temperatures = np.full(num, temperature)
        if len(self.elites):
            partial = self._rng.random(num) < self._settings.partial
            kept[partial] = self._parts(int(partial.sum()))
            temperatures[partial] *= self._settings.temperature
            kept[0], temperatures[0] = -1, 0.0
        return self._sample(kept, temperatures)

    def some_elites(self, num: int) -> Schedules:
        """Draw elites [num, N], better ones more often; empty while there are none."""
        if not len(self.elites):
            return self.elites
        chances = self._settings.fade ** np.arange(len(self.elites))
        return self.elites[self._rng.choice(len(self.elites), size=num, p=chances / chances.sum())]

    def remember(self, schedules: Schedules, scores: Floats) -> None:
        """Keep the best of these schedules and the elites as the new elites."""
        both = np.concatenate([self.scores, scores])
        best = np.argsort(-both, kind="stable")[: self._settings.elites]
        self.elites = np.concatenate([self.elites, schedules])[best]
        self.scores = both[best]

    def forget(self) -> None:
        """Drop the elites and the recent scores, but keep the policy."""
        self.elites, self.scores, self._recent = self.elites[:0], self.scores[:0], self._recent[:0]
        self._baseline = 0.0

    def learn(self, schedules: Schedules, scores: Floats) -> None:
        s = self._settings
        self._recent = np.concatenate([self._recent, scores])[-s.window :]
        rewards = _standing(scores, self._recent)
        advantages = torch.as_tensor(rewards - self._baseline, dtype=torch.float32)
        self._baseline = (1 - s.gamma) * self._baseline + s.gamma * float(rewards.mean())
        weights = torch.as_tensor(s.fade ** np.arange(len(self.elites)), dtype=torch.float32)
        with torch_threads(1):
            self._climb(schedules, advantages, s.imitate * weights / weights.sum())

    def _climb(self, schedules: Schedules, advantages: torch.Tensor, weights: torch.Tensor) -> None:
        s = self._settings
        num, num_layers = schedules.shape
        both = torch.as_tensor(np.concatenate([schedules, self.elites]), dtype=torch.long)
        before: torch.Tensor | None = None
        for _ in range(s.steps):
            log_p = self._policy(both)
            taken = log_p.gather(2, both[..., None])[..., 0].sum(dim=1)
            if before is None:
                before = taken[:num].detach()
            ratio = (taken[:num] - before).clamp(max=5.0).exp()
            clipped = ratio.clamp(1 - s.clip, 1 + s.clip)
            gain = torch.minimum(ratio * advantages, clipped * advantages).mean()
            likeness = (weights * taken[num:]).sum() / num_layers
            entropy = -(log_p.exp() * log_p).sum(dim=2).mean()
            self._adam.zero_grad()
            (-gain - likeness - s.entropy * entropy).backward()
            torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 1.0)
            self._adam.step()

    def _parts(self, num: int) -> Ints:
        """Draw elites [num, N] with -1 in a run of layers that is to be drawn again."""
        elites = self.some_elites(num)
        first, last = pick_runs(elites, self._rng)
        layers = np.arange(elites.shape[1])
        return np.where((layers >= first[:, None]) & (layers <= last[:, None]), -1, elites.astype(np.int64))

    def _sample(self, kept: Ints, temperatures: Floats) -> Schedules:
        with torch_threads(1):
            drawn = self._policy.sample(
                torch.as_tensor(kept), torch.as_tensor(temperatures, dtype=torch.float32), self._generator
            )
        return drawn.numpy().astype(np.int16)


def _standing(scores: Floats, among: Floats) -> Floats:
    """Return the rank of each score among `among`, from -1 (below all) to 1 (above all); ties share their mean rank."""
    ordered = np.sort(among)
    places = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    standing: Floats = places / len(ordered) - 1.0
    return standing
