"""The input features of the learned schedulers: numbers near 1, for each layer and for each layer on each resource.

    layers  [N, .]     index and kind (one-hot), input and weight bytes, communication and server seconds
    pairs   [N, T, .]  what layer l takes and costs on resource t; it means the same in every problem (pair_features)
    usd     [N, T]     approximate cost of layer l on t, divided by the cost of all layers where each is cheapest
    cheap   [N, T]     logits for choosing t for layer l by that cost alone: 0 is best

Everything that spans orders of magnitude enters as a logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heterps.arrays import Mask
from heterps.planning.cost import Floats, Ints, Problem

LEAST = 1e-12
FARTHEST = 12.0
"""Upper bound of the logarithms of ratios: worse than this makes no difference."""
MOST_LOG = 8.0
NUM_PAIR_FEATURES = 20
MATTERS = 0.03
"""Share of the whole bill below which a difference in cost hardly counts."""
SCARCITY = 2.0
"""Exponent of the extra cost of a layer that alone needs more units of a resource than may be rented."""


@dataclass(frozen=True)
class Features:
    """The features of a problem, as described above."""

    layers: Floats  # [N, .]
    pairs: Floats  # [N, T, .], 0 where the layer cannot run
    usd: Floats  # [N, T]
    cheap: Floats  # [N, T], at most 0
    runs: Mask  # [N, T] whether the layer may run there

    def without(self, resources: list[int]) -> Features:
        """Return the features without these resources, except for layers that could then run nowhere."""
        left = self.runs.copy()
        left[:, resources] = False
        return replace(self, runs=np.where(left.any(axis=1, keepdims=True), left, self.runs))


def fastest_s(problem: Problem) -> float:
    """Lower bound on the seconds per batch of all schedules, with any number of units."""
    a, d = problem.terms[:, :, 1], problem.terms[:, :, 3]
    return float(np.maximum(a, d).min(axis=0).max())


def features_of(problem: Problem, tau: float) -> Features:
    """Compute the features for batches in `tau` seconds: what is cheap at one pace may be expensive at another."""
    servers = np.zeros(len(problem.resources))
    if problem.server >= 0:
        servers[problem.server] = problem.server_s / tau
    pairs, usd, runs = pair_features(problem.terms, problem.prices, problem.limits, servers, tau)
    usd = usd / max(float(np.where(runs, usd, np.inf).min(axis=1).sum()), LEAST)
    cheap = cost_logits(np.where(runs, usd, np.inf))
    comm_s = (problem.terms[:, :, 2] + problem.terms[:, :, 3]).T
    return Features(_layers(problem, comm_s, runs, tau), pairs, usd, cheap, runs)


def pair_features(
    terms: Floats, prices: Floats, limits: Ints, servers: Floats, tau: float | Floats
) -> tuple[Floats, Floats, Mask]:
    """Return the features [..., N, T, NUM_PAIR_FEATURES] and USD per hour [..., N, T] of each layer alone on each
    resource, and whether it runs there.

    Takes the terms [..., T, N, 6 or more], the prices, limits and server units [..., T] and the seconds per batch [...]
    of one problem or of several that have as many layers and resources.
    """
    per_layer = np.swapaxes(terms[..., :6], -3, -2)  # [..., N, T, 6]
    p, a, q, d, input_q, input_d = np.moveaxis(per_layer, -1, 0)
    runs = np.isfinite(a)
    a = np.where(runs, a, 0.0)
    tau = np.asarray(tau)[..., None, None]
    price, limit, server = (x[..., None, :] + np.zeros_like(p) for x in (np.maximum(prices, LEAST), limits, servers))
    units = np.maximum(_units(p, a, tau), _units(q, d, tau))
    usd = price * units * np.maximum(units / limit, 1.0) ** SCARCITY
    least = np.where(runs, usd, np.inf).min(axis=-1, keepdims=True)
    total = np.maximum(least.sum(axis=-2, keepdims=True), LEAST)
    sum_p, sum_a, sum_q, sum_d = (x.sum(axis=-2, keepdims=True) for x in (p, a, q, d))
    first_q, first_d = input_q[..., :1, :], input_d[..., :1, :]
    whole = price * np.maximum(_units(sum_p, sum_a, tau), _units(sum_q + first_q, sum_d + first_d, tau))
    features = [
        *(_log(x / tau) / 3 for x in (p, a, q, d, input_q, input_d)),
        *(np.minimum(x / tau, 2.0) for x in (a, d, input_d)),
        _log(usd / np.maximum(least, LEAST), 0.0),
        _log(usd / total) / 3,
        np.minimum((usd - least) / total, 2.0),
        _log(units) / 3,
        _log(units / limit) / 3,
        _log(price / price.min(axis=-1, keepdims=True)) / 2,
        _log(price / total) / 2,
        _log(whole / total, -2.0) / 2,
        np.minimum(price * _units(input_q, input_d, tau) / total, 2.0),
        np.minimum(server / limit, 2.0),
        np.log1p(server),
    ]
    return np.where(runs[..., None], np.stack(features, axis=-1), 0.0), usd, runs


def cost_logits(usd: Floats) -> Floats:
    """Turn costs [n, T] into logits [n, T], at most 0: a resource is more likely the less it costs above the least.

    Costs are shares of the whole bill, since it hardly matters where a layer runs that costs almost nothing anywhere.
    """
    regret = usd - usd.min(axis=1, keepdims=True)
    likely: Floats = -np.minimum(np.log1p(regret / MATTERS), FARTHEST)
    return likely


def _layers(problem: Problem, comm_s: Floats, runs: Mask, tau: float) -> Floats:
    layers = problem.profile.layers
    kinds = sorted({layer.kind for layer in layers})
    known = np.array([[layer.kind == kind for kind in kinds] for layer in layers], dtype=float)
    mean_comm_s = np.where(runs, comm_s, 0.0).sum(axis=1) / runs.sum(axis=1)
    sizes = np.array([[layer.input_bytes, layer.weight_bytes, layer.server_s] for layer in layers])
    numbers = np.log1p(np.column_stack([sizes[:, :2], sizes[:, 2:] / tau, mean_comm_s / tau]))
    return np.hstack([np.eye(len(layers)), known, _standard(numbers, np.ones(len(layers), dtype=bool))])


def _units(divided: Floats, fixed: Floats, tau: Floats) -> Floats:
    """Real-valued number of units with which a layer alone takes tau; very large if no number suffices."""
    return divided / np.maximum(tau - fixed, tau * 1e-2)


def _log(x: Floats, least: float = -10.0) -> Floats:
    log: Floats = np.clip(np.log(np.maximum(x, LEAST)), least, MOST_LOG)
    return log


def _standard(x: Floats, where: Mask) -> Floats:
    """Standardise x to mean 0 and variance 1 over the places `where`; it is 0 elsewhere."""
    known = x[where]
    scaled = (x - known.mean(axis=0)) / (known.std(axis=0) + 1e-6)
    return np.where(where[..., None], scaled, 0.0)
