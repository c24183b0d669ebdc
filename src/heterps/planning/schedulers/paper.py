"""The learned scheduler of the HeterPS paper and nothing else: method `rl-paper`.

    features of layer l --> LSTM, one step per layer --> softmax over the resources --> a_l

    theta += eta * mean_n sum_l grad log P(a_l) * (R_n - b)          b <- (1 - gamma) b + gamma * mean R

The features are those that the paper names: index and kind of the layer (one-hot), input bytes, weight bytes and
communication time. The reward R is -log USD, relative to the first feasible bill; infeasible plans get a penalty that
grows with the violation. The paper gives no hyperparameters, so those below are ours. A schedule that is drawn again is
billed again. The search ends when every draw of a batch is the same.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from heterps.planning.cost import Floats, Problem, Schedules
from heterps.planning.provisioners.base import Bills
from heterps.planning.schedulers.base import Unproven
from heterps.planning.schedulers.features import features_of
from heterps.threads import torch_threads

BATCH = 32
HIDDEN = 32
LR = 3e-3
GAMMA = 0.2  # weight of the newest batch in the baseline
PENALTY = 3.0  # of an infeasible plan with almost no violation
IMPOSSIBLE = -1e9
"""Logit of a resource on which a layer cannot run; finite, so that gradients are not NaN."""


class PaperReinforce(Unproven):
    """The scheduler of method `rl-paper`."""

    def __init__(self, problem: Problem, seed: int) -> None:
        features = features_of(problem, problem.tau_max)
        seed = int(np.random.default_rng(seed).integers(1 << 31))  # torch takes no larger ones
        with torch_threads(1), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._policy = LayerPolicy(torch.as_tensor(features.layers), torch.as_tensor(~features.runs))
            self._adam = torch.optim.Adam(self._policy.parameters(), lr=LR)
        self._generator = torch.Generator().manual_seed(seed)
        self._first_usd: float | None = None
        self._baseline: float | None = None
        self._converged = False

    def propose(self) -> Schedules | None:
        if self._converged:
            return None
        with torch_threads(1), torch.no_grad():
            drawn = torch.multinomial(self._policy().exp(), BATCH, replacement=True, generator=self._generator)
        self._converged = bool((drawn == drawn[:, :1]).all())
        return drawn.T.numpy().astype(np.int16)

    def feedback(self, schedules: Schedules, bills: Bills) -> None:
        rewards = self._rewards(bills)
        baseline = float(rewards.mean()) if self._baseline is None else self._baseline
        self._baseline = (1 - GAMMA) * baseline + GAMMA * float(rewards.mean())
        advantages = torch.as_tensor(rewards - baseline, dtype=torch.float32)
        with torch_threads(1):
            taken = self._policy().gather(1, torch.as_tensor(schedules.T, dtype=torch.long)).sum(dim=0)
            self._adam.zero_grad()
            (-(taken * advantages).mean()).backward()
            self._adam.step()

    def _rewards(self, bills: Bills) -> Floats:
        feasible = np.isfinite(bills.usd)
        usd = np.maximum(bills.usd, np.finfo(float).tiny)
        if self._first_usd is None and feasible.any():
            self._first_usd = float(usd[feasible][0])
        penalty = PENALTY + np.log1p(bills.violation)
        first = np.log(self._first_usd if self._first_usd is not None else 1.0)
        return np.where(feasible, first - np.log(np.where(feasible, usd, 1.0)), -penalty)  # a ratio could overflow


class LayerPolicy(nn.Module):
    """An LSTM with one step per layer, which returns log-probabilities [N, T] of the layers' resources."""

    layers: Tensor
    impossible: Tensor

    def __init__(self, layers: Tensor, impossible: Tensor) -> None:
        super().__init__()
        self.register_buffer("layers", layers.float())
        self.register_buffer("impossible", impossible)
        self.cell = nn.LSTM(layers.shape[1], HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, impossible.shape[1])

    def forward(self) -> Tensor:
        h, _ = self.cell(self.layers[None])
        logits: Tensor = self.out(h[0]).masked_fill(self.impossible, IMPOSSIBLE)
        return logits.log_softmax(dim=1)
