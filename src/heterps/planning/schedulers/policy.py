"""The policy network of the learned scheduler: P(a_l | a_{l-1}), the probabilities of the resources for layer l.

    pairs [N, T, .]      what layer l takes and costs on resource t (features.py)
         |
      embed
         |
    +--> cell, along the layers, forth and back: one sequence per resource     LSTM, or an Elman cell for rl-rnn
    |    mix with the mean and the maximum over the resources                  what the others offer
    +----+  twice
         |
    score [N, T], stay [N, T]

    P(a_l = t | a_{l-1}) = softmax over t of   score(l, t)  +  stay(l, t) [t = a_{l-1}]

All resources share the weights, and a layer is known by what it takes. So one network fits any number of layers and
resources, and what it learned from one problem holds for others: see `load_pretrained`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import torch
from safetensors.torch import load
from torch import Tensor, nn

from heterps.planning.schedulers.features import NUM_PAIR_FEATURES, Features

Cell = Literal["lstm", "elman"]

WIDTH = 48
BLOCKS = 2
STAY = 1.0
"""Log-odds of the last layer's resource against all others together, in a policy that has learned nothing."""
IMPOSSIBLE = -1e9
"""Logit of a resource on which a layer cannot run; finite, so that entropies and gradients are not NaN."""
PRETRAINED = "pretrained.safetensors"


class SchedulePolicy(nn.Module):
    """A recurrent network that scores the resources of every layer.

    `trust` is the weight of the plain guess that a resource is likelier the cheaper a layer is on it. It is 1 in a
    policy that has learned nothing, whose network adds nothing, and 0 in a pre-trained one.
    """

    def __init__(self, cell: Cell = "lstm") -> None:
        super().__init__()
        self.embed = nn.Linear(NUM_PAIR_FEATURES, WIDTH)
        self.blocks = nn.ModuleList(_Block(cell) for _ in range(BLOCKS))
        self.out = nn.Linear(WIDTH, 2)
        self.trust = nn.Parameter(torch.tensor(1.0))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, pairs: Tensor, cheap: Tensor, runs: Tensor) -> Chances:
        """Return the chances for features [..., N, T, .] of one problem or of several of equal size."""
        h = self.embed(pairs).relu()
        for block in self.blocks:
            h = block(h, runs)
        score, stay = self.out(h).unbind(dim=-1)
        plain_stay = STAY + math.log(max(cheap.shape[-1] - 1, 1))
        score = (score + self.trust * cheap).masked_fill(~runs, IMPOSSIBLE)
        return Chances(score, stay + self.trust * plain_stay)


class _Block(nn.Module):
    def __init__(self, cell: Cell) -> None:
        super().__init__()
        make = {"lstm": nn.LSTM, "elman": nn.RNN}[cell]
        self.cell = make(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.mix = nn.Linear(3 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, runs: Tensor) -> Tensor:
        sequences = x.transpose(-3, -2)  # [..., T, N, WIDTH]
        y = self.cell(sequences.flatten(0, -3))[0].view(sequences.shape).transpose(-3, -2)
        where = runs[..., None]
        mean = (y * where).sum(dim=-2, keepdim=True) / where.sum(dim=-2, keepdim=True).clamp(min=1)
        most = y.masked_fill(~where, -1.0).amax(dim=-2, keepdim=True)
        mixed: Tensor = self.norm(x + self.mix(torch.cat([y, mean.expand_as(y), most.expand_as(y)], dim=-1)).relu())
        return mixed


@dataclass(frozen=True)
class Chances:
    """The logits of all resources of every layer: a first-order chain over the layers."""

    score: Tensor  # [..., N, T]
    stay: Tensor  # [..., N, T]: added where the layer before is on the same resource; unused for the first layer

    def log_p(self, schedules: Tensor) -> Tensor:
        """Return log-probabilities [n, ..., N, T] of all resources, given the choices before of schedules [n, ..., N].

        The dimensions between are those of the chances: one schedule for each of several problems.
        """
        stays = torch.zeros_like(self.score).repeat(len(schedules), *[1] * self.score.dim())
        before = schedules[..., :-1, None]
        stays[..., 1:, :].scatter_(-1, before, self.stay[..., 1:, :].expand(stays[..., 1:, :].shape).gather(-1, before))
        return (self.score + stays).log_softmax(dim=-1)

    @torch.no_grad()
    def sample(self, kept: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
        """Draw schedules [n, ..., N]; entries of `kept` [n, ..., N] that are not negative are kept.

        The logits of schedule i are divided by temperature[i]; 0 gives the most likely resource of each layer.
        """
        chosen = torch.empty_like(kept)
        temperature = temperature.view(-1, *[1] * (kept.dim() - 1))
        for layer in range(kept.shape[-1]):
            logits = self.score[..., layer, :].expand(*kept.shape[:-1], -1)
            if layer > 0:
                before = chosen[..., layer - 1, None]
                logits = logits.scatter_add(-1, before, self.stay[..., layer, :].expand_as(logits).gather(-1, before))
            # The largest of logits + Gumbel noise is a draw from the softmax.
            uniform = torch.rand(logits.shape, generator=generator).clamp_(1e-9, 1 - 1e-7)
            drawn = (logits - temperature * (-uniform.log()).log()).argmax(dim=-1)
            chosen[..., layer] = torch.where(kept[..., layer] < 0, drawn, kept[..., layer])
        return chosen

    @torch.no_grad()
    def most_likely(self) -> Tensor:
        """Return the most likely schedule [N] of one problem as a whole (Viterbi)."""
        best = self.score[0].log_softmax(dim=0)
        origins = []
        for score, stay in zip(self.score[1:], self.stay[1:], strict=True):
            step = (score + torch.diag(stay)).log_softmax(dim=1)  # [from, to]
            best, origin = (best[:, None] + step).max(dim=0)
            origins.append(origin)
        schedule = [int(best.argmax())]
        for origin in reversed(origins):
            schedule.append(int(origin[schedule[-1]]))
        return torch.tensor(schedule[::-1])


def as_tensors(features: Features) -> tuple[Tensor, Tensor, Tensor]:
    """Return the arguments of `SchedulePolicy.forward`."""
    pairs, cheap = (torch.as_tensor(x, dtype=torch.float32) for x in (features.pairs, features.cheap))
    return pairs, cheap, torch.as_tensor(features.runs)


@torch.no_grad()
def likely_schedule(features: Features) -> Tensor:
    """Return the schedule [N] that the pre-trained policy finds most likely."""
    chances: Chances = _pretrained_policy()(*as_tensors(features))
    return chances.most_likely()


@cache
def _pretrained_policy() -> SchedulePolicy:
    with torch.random.fork_rng(devices=[]):
        policy = SchedulePolicy()
    policy.load_state_dict(load_pretrained())
    return policy


@cache
def load_pretrained() -> dict[str, Tensor]:
    """Return the weights of a policy with an LSTM that was trained on many random problems.

    benchmarks/schedulers/pretrain.py made them.
    """
    return load((files("heterps.planning.schedulers") / PRETRAINED).read_bytes())
