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
from heterps.planning.schedulers.elites import Elites
from heterps.planning.schedulers.features import Features
from heterps.planning.schedulers.policy import Cell, Chances, SchedulePolicy, as_tensors, load_pretrained
from heterps.planning.schedulers.random_plans import pick_runs
from heterps.threads import torch_threads


@dataclass(frozen=True)
class LearnerSettings:
    """Hyperparameters of the learner, chosen by experiment: see docs/decisions/0013-learned-scheduler.md."""

    lr: float = 1e-2
    gamma: float = 0.2  # weight of the newest batch in the baseline
    steps: int = 3  # gradient steps per batch
    clip: float = 0.2  # largest relative change of a schedule's probability per batch
    reinforce: float = 1.0  # weight of REINFORCE beside the imitation of elites
    entropy: float = 0.01
    window: int = 256
    imitate: float = 2.0
    partial: float = 0.5  # share of draws that keep a part of an elite
    temperature: float = 2.0  # temperature of partial draws
    changed: float = 0.33  # share of draws that are not the policy's, but elites with random changes


class Learner:
    """A policy in training."""

    def __init__(
        self, features: Features, cell: Cell, settings: LearnerSettings, seed: int, *, is_pretrained: bool = False
    ) -> None:
        self._settings = settings
        self._features = as_tensors(features)
        with torch_threads(1), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._policy = SchedulePolicy(cell)
        if is_pretrained:
            self._policy.load_state_dict(load_pretrained())
        self._adam = torch.optim.Adam(self._policy.parameters(), lr=settings.lr)
        self._chances: Chances | None = None  # of the policy as it is
        self._generator = torch.Generator().manual_seed(seed)
        self._rng = np.random.default_rng(seed)
        self._baseline = 0.0
        self._recent = np.empty(0)
        self._num_layers = features.runs.shape[0]

    def most_likely(self) -> Schedules:
        """Return the most likely schedule [1, N]."""
        with torch_threads(1):
            return self._now().most_likely().numpy().astype(np.int16)[None]

    def draw(self, num: int, temperature: float, elites: Elites) -> Schedules:
        """Draw schedules [num, N]: the most likely one, some from the policy, some elites with a part drawn again."""
        kept = np.full((num, self._num_layers), -1)
        temperatures = np.full(num, temperature)
        if len(elites):
            partial = self._rng.random(num) < self._settings.partial
            kept[partial] = self._parts(elites.some(int(partial.sum()), self._rng))
            temperatures[partial] *= self._settings.temperature
            kept[0], temperatures[0] = -1, 0.0
        return self._sample(kept, temperatures)

    def forget(self) -> None:
        """Drop the recent scores, but keep the policy."""
        self._recent, self._baseline = self._recent[:0], 0.0

    def learn(self, schedules: Schedules, scores: Floats, elites: Elites) -> None:
        """Make the policy more likely to draw what scores well, and the elites, which include these schedules."""
        s = self._settings
        self._recent = np.concatenate([self._recent, scores])[-s.window :]
        rewards = _standing(scores, self._recent)
        advantages = torch.as_tensor(rewards - self._baseline, dtype=torch.float32)
        self._baseline = (1 - s.gamma) * self._baseline + s.gamma * float(rewards.mean())
        with torch_threads(1):
            self._climb(schedules, advantages, elites)

    def _climb(self, schedules: Schedules, advantages: torch.Tensor, elites: Elites) -> None:
        s = self._settings
        num, num_layers = schedules.shape
        both = torch.as_tensor(np.concatenate([schedules, elites.schedules]), dtype=torch.long)
        weights = s.imitate * torch.as_tensor(elites.weights, dtype=torch.float32)
        before: torch.Tensor | None = None
        for _ in range(s.steps):
            log_p = self._policy(*self._features).log_p(both)
            taken = log_p.gather(2, both[..., None])[..., 0].sum(dim=1)
            if before is None:
                before = taken[:num].detach()
            ratio = (taken[:num] - before).clamp(max=5.0).exp()
            clipped = ratio.clamp(1 - s.clip, 1 + s.clip)
            gain = torch.minimum(ratio * advantages, clipped * advantages).mean()
            likeness = (weights * taken[num:]).sum() / num_layers
            entropy = -(log_p.exp() * log_p).sum(dim=2).mean()
            self._adam.zero_grad()
            (-s.reinforce * gain - likeness - s.entropy * entropy).backward()
            torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 1.0)
            self._adam.step()
        self._chances = None

    def _parts(self, schedules: Schedules) -> Ints:
        """Return the schedules [n, N] with -1 in a run of layers that is to be drawn again."""
        first, last = pick_runs(schedules, self._rng)
        layers = np.arange(self._num_layers)
        return np.where((layers >= first[:, None]) & (layers <= last[:, None]), -1, schedules.astype(np.int64))

    def _sample(self, kept: Ints, temperatures: Floats) -> Schedules:
        with torch_threads(1):
            drawn = self._now().sample(
                torch.as_tensor(kept), torch.as_tensor(temperatures, dtype=torch.float32), self._generator
            )
        return drawn.numpy().astype(np.int16)

    def _now(self) -> Chances:
        """Return the chances of the policy as it is."""
        if self._chances is None:
            with torch.no_grad():
                self._chances = self._policy(*self._features)
        return self._chances


def _standing(scores: Floats, among: Floats) -> Floats:
    """Return the rank of each score among `among`, from -1 (below all) to 1 (above all); ties share their mean rank."""
    ordered = np.sort(among)
    places = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    standing: Floats = places / len(ordered) - 1.0
    return standing
