"""The input features of the learned scheduler: numbers near 1, for each layer and for each layer on each resource.

    layers  [N, .]     index and kind (one-hot), input and weight bytes, communication and server seconds
    pairs   [N, T, .]  seconds and cost of layer l on resource t, also relative to the other resources
    usd     [N, T]     approximate cost of layer l on t, divided by the cost of all layers where each is cheapest
    cheap   [N, T]     logits for choosing t for layer l by that cost alone: 0 is best

Everything that spans orders of magnitude enters as a logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from heterps.planning.cost import Floats, Problem

Mask = npt.NDArray[np.bool_]

LEAST = 1e-12
FARTHEST = 12.0
"""Upper bound of the logarithms of ratios: worse than this makes no difference."""
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
    p, a, q, d, input_q, input_d = np.moveaxis(problem.terms, (0, 1), (1, 0)).transpose(2, 0, 1)  # each [N, T]
    runs = np.isfinite(a)
    a = np.where(runs, a, 0.0)
    compute_s, comm_s, input_s = p + a, q + d, input_q + input_d
    prices = np.broadcast_to(np.maximum(problem.prices, LEAST), p.shape)
    limits = np.broadcast_to(problem.limits.astype(float), p.shape)
    units = np.maximum(_units(p, a, tau), _units(q, d, tau))
    usd = prices * units * np.maximum(units / limits, 1.0) ** SCARCITY
    seconds = [_log(x / tau) for x in (compute_s, comm_s, input_s)]
    costs = [_over_least(prices * x, runs) for x in (compute_s, comm_s, input_s)]
    shares = [np.minimum(x / tau, 2.0) for x in (a, d, input_d)]
    pairs = np.stack(
        [*seconds, *costs, *shares, _over_least(usd, runs), _log(units / limits), _log(prices), _log(limits)], axis=-1
    )
    usd = usd / max(float(np.where(runs, usd, np.inf).min(axis=1).sum()), LEAST)
    cheap = cost_logits(np.where(runs, usd, np.inf))
    return Features(_layers(problem, comm_s, runs, tau), _standard(pairs, runs), usd, cheap, runs)


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


def _units(divided: Floats, fixed: Floats, tau: float) -> Floats:
    """Real-valued number of units with which a layer alone takes tau; very large if no number suffices."""
    return divided / np.maximum(tau - fixed, tau * 1e-3)


def _log(x: Floats) -> Floats:
    return np.log(np.maximum(x, LEAST))


def _over_least(x: Floats, runs: Mask) -> Floats:
    """Return log(x / its minimum over the resources), clipped to [0, FARTHEST]."""
    x = np.maximum(x, LEAST)
    least = np.where(runs, x, np.inf).min(axis=1, keepdims=True)
    over: Floats = np.minimum(np.log(x / least), FARTHEST)
    return over


def _standard(x: Floats, where: Mask) -> Floats:
    """Standardise x to mean 0 and variance 1 over the places `where`; it is 0 elsewhere."""
    known = x[where]
    scaled = (x - known.mean(axis=0)) / (known.std(axis=0) + 1e-6)
    return np.where(where[..., None], scaled, 0.0)
