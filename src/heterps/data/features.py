"""The arithmetic of features: numbers in, numbers out, with NaN for a missing value throughout.

    log            sign(x) * log(1 + |x|)
    clip           min(max(x, low), high)
    standardise    (x - mean) / std
    bucketise      how many borders are <= x: an id from 0 to the number of borders
    date           a part of the seconds x since 1970-01-01T00:00 UTC, in the calendar of UTC
    cross          mix64(mix64(a) XOR b), and so on for more ids: an id for every combination
                                                                                        (mix64 is in hashing.py)
Numbers are float64 until the end, when a dense column becomes float32. Nothing here knows files or Arrow: who scores a
model elsewhere needs these few lines and the numbers in the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from heterps.config.features import AnyStep, Bucketise, ClipValues, Date, DatePart, Log, Standardise
from heterps.hashing import mix64

Numbers = NDArray[np.float64]
Ids = NDArray[np.int64]

DAY_S = 86_400


def transform(values: Numbers, steps: Iterable[AnyStep]) -> Numbers:
    """Return the values [n] after all steps. Dates are given as seconds since 1970."""
    for step in steps:
        values = apply(values, step)
    return values


def apply(values: Numbers, step: AnyStep) -> Numbers:
    """Return the values [n] after one step, which must be fitted."""
    match step:
        case Log():
            return np.copysign(np.log1p(np.abs(values)), values)
        case ClipValues():
            return np.clip(values, step.low, step.high)
        case Standardise():
            assert step.mean is not None, "standardise is not fitted"
            return (values - step.mean) / (step.std or 1.0)
        case Bucketise():
            assert step.borders is not None, "bucketise is not fitted"
            found = np.searchsorted(np.asarray(step.borders), values, side="right").astype(np.float64)
            return np.where(np.isnan(values), np.nan, found)
        case Date():
            return date_part(values, step.part)


def date_part(seconds: Numbers, part: DatePart) -> Numbers:
    """Return a part of dates that are seconds since 1970, in UTC."""
    if part == "days":
        return seconds / DAY_S
    missing = np.isnan(seconds)
    whole = np.floor(np.where(missing, 0.0, seconds)).astype(np.int64)
    return np.where(missing, np.nan, _part(whole, part).astype(np.float64))


def _part(seconds: Ids, part: DatePart) -> Ids:
    days = seconds // DAY_S
    match part:
        case "minute":
            return seconds // 60 % 60
        case "hour":
            return seconds // 3600 % 24
        case "weekday":
            return (days + 3) % 7  # 1970-01-01 was a Thursday
    date = days.astype("datetime64[D]")
    month, year = date.astype("datetime64[M]"), date.astype("datetime64[Y]")
    match part:
        case "month":
            return month.astype(np.int64) % 12 + 1
        case "day":
            return np.asarray((date - month).astype(np.int64) + 1)
        case "day_of_year":
            return np.asarray((date - year).astype(np.int64) + 1)
        case _:
            return year.astype(np.int64) + 1970


def cross(ids: Sequence[Ids]) -> Ids:
    """Return one id for every combination of ids [n] of several slots."""
    crossed = ids[0]
    for other in ids[1:]:
        crossed = _cross(crossed, other)
    return crossed


@njit(nogil=True, cache=True)
def _cross(one: Ids, other: Ids) -> Ids:
    crossed = np.empty(len(one), np.int64)
    for i in range(len(one)):
        crossed[i] = mix64(mix64(uint64(one[i])) ^ uint64(other[i]))
    return crossed
