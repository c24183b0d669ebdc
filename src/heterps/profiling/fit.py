"""Fits of measured times. Pure functions.

A stage with k units is data parallel: each unit takes a k-th of the batch, so the time of k units is the time of one
unit on a k-th of the batch. Amdahl's law then says which share of the time more units divide:

    T(k) = T(1) * (1 - alpha + alpha / k)     =>     1 - T(k)/T(1) = alpha * (1 - 1/k)
                                                          y        = alpha *     x

What does not shrink with the batch (launching kernels, reading weights, the latency of a message, rows that every
part of the batch needs) is the other share. beta is the same fit over seconds of communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DEFAULT_SHARE = 1.0
"""alpha or beta where there is nothing to fit: no time at all, or a batch of one sample, which cannot be divided."""


def fit_share(times_s: Mapping[float, float]) -> float:
    """The share of T(1) that k units divide, from seconds by k; least squares through the origin, clamped to [0, 1].

    `times_s` must hold T(1); k may be a fraction (a batch of 5 in parts of 3: k = 5/3).
    """
    whole_s = times_s[1.0]
    points = [(1 - 1 / k, 1 - t / whole_s) for k, t in times_s.items() if k != 1] if whole_s > 0 else []
    if not points:
        return DEFAULT_SHARE
    share = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return min(max(share, 0.0), 1.0)


def fit_fixed(times_s: Mapping[float, float]) -> float:
    """The part of T(1) that does not grow with the batch, from the whole batch and the next largest part of it:

    T = fixed + per_sample * samples      the line through two batch sizes; from one alone, nothing is known fixed
    """
    two = sorted(times_s)[:2]
    if len(two) < 2:
        return 0.0
    return min(fit_line([(1 / k, times_s[k]) for k in two]).fixed_s, times_s[1.0])


@dataclass(frozen=True)
class FittedLine:
    """seconds = fixed_s + per_unit_s * amount"""

    fixed_s: float
    per_unit_s: float


def fit_line(points: Sequence[tuple[float, float]]) -> FittedLine:
    """The line through (amount, seconds), by least squares with neither term below zero. Two amounts or more."""
    n = len(points)
    mean_x = sum(x for x, _ in points) / n
    mean_y = sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        raise ValueError(f"a line needs two different amounts, got {[x for x, _ in points]}")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    if slope < 0:
        return FittedLine(mean_y, 0.0)
    if mean_y < slope * mean_x:  # the best line would start below zero: take the one through the origin
        return FittedLine(0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points))
    return FittedLine(mean_y - slope * mean_x, slope)
