"""The policy network of the learned scheduler: P(a_l | a_<l), the probabilities of the resources for layer l.

              a_0           a_1
               |             |
    x_0  0     v  x_1        v  x_2         x_l   features of layer l
     |   |     |   |         |   |
    [  cell  ]-[  cell   ]--[  cell   ]     LSTM, or an Elman cell for rl-rnn; one step per layer
         |         |             |
        h_0       h_1           h_2
         |         |             |
       softmax over t of   query(h_l) . key(l, t)  +  score(l, t)  +  stay(h_l) [t = a_{l-1}]

A resource is scored by the seconds and the cost of the layer on it, with the same weights for all resources, so that
what is learned for one holds for 64. Keys and scores also have a learned part for each resource. The cell receives the
last action as its key.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from heterps.planning.schedulers.features import Features

Cell = Literal["lstm", "elman"]

IMPOSSIBLE = -1e9
"""Logit of a resource on which a layer cannot run; finite, so that entropies and gradients are not NaN."""


class SchedulePolicy(nn.Module):
    """A recurrent network that draws schedules, layer by layer."""

    layers: Tensor
    pairs: Tensor
    cheap: Tensor
    impossible: Tensor

    def __init__(self, features: Features, cell: Cell, hidden: int, width: int, trust: float, stay: float) -> None:
        """Create the network. `trust` and `stay` are initial values, which are learned.

        trust  weight of how cheap a layer is on a resource
        stay   log-odds of the last layer's resource against all others together
        """
        super().__init__()
        for name in ("layers", "pairs", "cheap"):
            self.register_buffer(name, torch.as_tensor(getattr(features, name), dtype=torch.float32))
        self.register_buffer("impossible", torch.as_tensor(~features.runs))
        num_resources, num_pairs = self.pairs.shape[1:]
        make = {"lstm": nn.LSTM, "elman": nn.RNN}[cell]
        self.cell = make(self.layers.shape[1] + width, hidden, batch_first=True)
        self.query = nn.Linear(hidden, width)
        self.key = nn.Linear(num_pairs, width, bias=False)
        self.own = nn.Parameter(torch.randn(num_resources, width) / math.sqrt(width))
        self.weigh = nn.Linear(num_pairs, 1, bias=False)
        self.favour = nn.Parameter(torch.zeros(num_resources))
        self.trust = nn.Parameter(torch.tensor(trust))
        self.stay = nn.Linear(hidden, 1)
        nn.init.zeros_(self.weigh.weight)
        nn.init.constant_(self.stay.bias, stay + math.log(max(num_resources - 1, 1)))

    def forward(self, schedules: Tensor) -> Tensor:
        """Return log-probabilities [n, N, T] of all resources, given the earlier choices of the schedules [n, N]."""
        num, num_layers = schedules.shape
        keys, scores = self._keys()
        before = keys[torch.arange(num_layers - 1), schedules[:, :-1]]
        last = torch.cat([before.new_zeros(num, 1, keys.shape[2]), before], dim=1)
        h, _ = self.cell(torch.cat([self.layers.expand(num, -1, -1), last], dim=2))
        logits = torch.einsum("nlw,ltw->nlt", self.query(h), keys) + scores
        stays = torch.zeros_like(logits)
        stays[:, 1:].scatter_(2, schedules[:, :-1, None], self.stay(h[:, 1:]))
        return (logits + stays).masked_fill(self.impossible, IMPOSSIBLE).log_softmax(dim=2)

    @torch.no_grad()
    def sample(self, kept: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
        """Draw schedules [n, N] from the policy; entries of `kept` [n, N] that are not negative are kept.

        The logits of schedule i are divided by temperature[i]; 0 gives the most likely resources.
        """
        keys, scores = self._keys()
        num_layers, num_resources, width = keys.shape
        last, state = keys.new_zeros(len(kept), width), None
        chosen = torch.empty_like(kept)
        for layer in range(num_layers):
            x = torch.cat([self.layers[layer].expand(len(kept), -1), last], dim=1)
            h, state = self.cell(x[:, None], state)
            logits = self.query(h[:, 0]) @ keys[layer].T + scores[layer]
            if layer > 0:
                logits.scatter_add_(1, chosen[:, layer - 1, None], self.stay(h[:, 0]))
            # The largest of logits + Gumbel noise is a draw from the softmax.
            uniform = torch.rand(len(kept), num_resources, generator=generator).clamp_(1e-9, 1 - 1e-7)
            logits -= temperature[:, None] * (-uniform.log()).log()
            drawn = logits.masked_fill_(self.impossible[layer], IMPOSSIBLE).argmax(dim=1)
            chosen[:, layer] = torch.where(kept[:, layer] < 0, drawn, kept[:, layer])
            last = keys[layer, chosen[:, layer]]
        return chosen

    def _keys(self) -> tuple[Tensor, Tensor]:
        """Return the keys [N, T, width], and the scores [N, T] that do not depend on earlier choices."""
        keys = self.key(self.pairs) + self.own
        return keys, self.weigh(self.pairs)[..., 0] + self.favour + self.trust * self.cheap
