"""Time functions repeatedly until a budget of seconds is spent."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from heterps.devices import synchronize

LEAST_RUNS = 3
MEDIAN_ERROR = 1.858
"""Standard error of the median of one normal number, over half its interquartile range: 1.2533 / 0.6745."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: the median, and half the interquartile range divided by the median."""

    median_s: float
    spread: float
    num_runs: int

    @property
    def error(self) -> float:
        """Relative standard error of the median, as if runs were normally distributed around it."""
        return MEDIAN_ERROR * self.spread / math.sqrt(self.num_runs)


def time_interleaved(works: Sequence[Callable[[], object]], budget_s: float, device: torch.device) -> list[Timing]:
    """Time functions in turns, so that a slow moment of the machine affects all of them alike.

    The first turn is not timed (compilation, caches); at least three turns follow, whatever the budget. On CPUs the
    processor seconds of this process are counted, which other programs on the machine do not lengthen.
    """
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    samples: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    end = time.perf_counter() + budget_s
    while len(samples[0]) < LEAST_RUNS or time.perf_counter() < end:
        for work, seconds in zip(works, samples, strict=True):
            synchronize(device)
            start = clock()
            work()
            synchronize(device)
            seconds.append(clock() - start)
    return [summarize(seconds) for seconds in samples]


def summarize(seconds: Sequence[float]) -> Timing:
    median = statistics.median(seconds)
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, (high - low) / 2 / median if median else 0.0, len(seconds))
