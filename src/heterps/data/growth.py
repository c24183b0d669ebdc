"""How the number of distinct ids grows with the number of samples: Heaps' law, fitted on a part of the data.

log V |            . ' ' o  at N samples: log V(N) = log V(n) + exponent * log(N / n)
      |        .o'          the curve bends, so the last points are fitted, and how much it still bends
      |    .o'              is the error of the exponent
      | o'
      +-------------------- log n
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LAST = 8.0
"""Points with at least 1/8 of the samples are fitted: earlier ones say little about the end of the curve."""
LEAST_POINTS = 3
STEP = 1.25
"""Least ratio of the samples of two neighbouring points."""
NORMAL_90 = 1.645


class Growth(NamedTuple):
    """Distinct ids after n samples: coefficient * n ** exponent."""

    coefficient: float
    exponent: float
    error: float  # standard error of the logarithm of the fit
    exponent_error: float
    samples: int  # that were looked at

    def distinct(self, samples: float) -> float:
        """Return the number of distinct ids expected among `samples` samples."""
        return self.coefficient * samples**self.exponent if samples > 0 else 0.0

    def interval(self, samples: float) -> tuple[float, float]:
        """Return the bounds between which 9 of 10 such numbers are expected, no fewer than were seen."""
        beyond = max(math.log(max(samples, 1.0) / self.samples), 0.0)
        wide = math.exp(NORMAL_90 * math.hypot(self.error, self.exponent_error * beyond))
        expected = self.distinct(samples)
        seen = self.distinct(min(samples, self.samples)) * math.exp(-NORMAL_90 * self.error)
        return max(expected / wide, seen), expected * wide


def fit_growth(points: Sequence[tuple[int, int]]) -> Growth | None:
    """Fit the growth to (samples, distinct ids) points in rising order; None if there are too few."""
    known = [(math.log(n), math.log(distinct)) for n, distinct in points if n > 0 and distinct > 0]
    last = [(x, y) for x, y in known if x >= known[-1][0] - math.log(LAST)] if known else []
    if len(last) < LEAST_POINTS:
        return None
    slope, start = _line(last)
    slope = min(max(slope, 0.0), 1.0)
    half = len(last) // 2
    early, late = _line(last[: half + 1])[0], _line(last[half:])[0]
    residuals = [y - start - slope * x for x, y in last]
    error = math.sqrt(sum(r * r for r in residuals) / (len(last) - 2))
    return Growth(math.exp(start), slope, error, abs(early - late), points[-1][0])


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and start of the least-squares line."""
    mean_x, mean_y = (sum(p[axis] for p in points) / len(points) for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread > 0 else 0.0
    return slope, mean_y - slope * mean_x


def worth_a_point(samples: int, points: Sequence[tuple[int, int]]) -> bool:
    """Tell whether this number of samples is enough more than at the last point to count distinct ids again."""
    return not points or samples >= points[-1][0] * STEP
