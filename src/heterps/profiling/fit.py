"""Fit alpha, beta and lines to measured times. Pure functions.

A stage with k units is data parallel: each unit takes 1/k of the batch, so the time of k units is the time of one
unit on 1/k of the batch. Amdahl's law then gives the share of the time that more units divide:

    T(k) = T(1) * (1 - alpha + alpha / k)     =>     1 - T(k)/T(1) = alpha * (1 - 1/k)
                                                          y        = alpha *     x

The other share does not shrink with the batch: launching kernels, reading weights, the latency of a message, rows that
every part of the batch needs. beta is the same fit over seconds of communication.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DEFAULT_SHARE = 1.0
"""alpha or beta if there is nothing to fit: all times are 0, or the batch has one sample and cannot be divided."""


def fit_share(times_s: Mapping[float, float]) -> float:
    """Fit the share of T(1) that k units divide: least squares through the origin, clamped to [0, 1].

    `times_s` has the seconds by k, including k = 1; k may be a fraction (a batch of 5 in parts of 3: k = 5/3).
    """
    whole_s = times_s[1.0]
    points = [(1 - 1 / k, 1 - t / whole_s) for k, t in times_s.items() if k != 1] if whole_s > 0 else []
    if not points:
        return DEFAULT_SHARE
    share = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return min(max(share, 0.0), 1.0)


def share_error(times_s: Mapping[float, float], errors: Mapping[float, float]) -> float:
    """Return the standard error of `fit_share`, given the relative standard errors of the seconds by k."""
    whole_s = times_s[1.0]
    points = [
        (1 - 1 / k, t / whole_s, math.hypot(errors[1.0], errors[k])) for k, t in times_s.items() if k != 1 and whole_s
    ]
    if not points:
        return 0.0
    return math.hypot(*(x * ratio * error for x, ratio, error in points)) / sum(x * x for x, *_ in points)


def fit_fixed(times_s: Mapping[float, float]) -> float:
    """Fit the seconds of T(1) that do not grow with the batch, from the whole batch and the next largest part of it.

    T = fixed + per_sample * samples is the line through the two batch sizes; with one batch size the result is 0.
    """
    two = sorted(times_s)[:2]
    if len(two) < 2:
        return 0.0
    return min(fit_line([(1 / k, times_s[k]) for k in two]).fixed_s, times_s[1.0])


@dataclass(frozen=True)
class FittedLine:
    """The line seconds = fixed_s + per_unit_s * amount."""

    fixed_s: float
    per_unit_s: float


def fit_line(points: Sequence[tuple[float, float]]) -> FittedLine:
    """Fit a line to (amount, seconds) points by least squares, with both terms at least 0. Needs two amounts."""
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
