"""Numbers as people read them: digits that matter, and a unit on everything."""

from __future__ import annotations

import math

UNDEFINED = "undefined"


def ratio(value: float | None) -> str:
    """A metric between about 0 and 2, with four decimals."""
    return UNDEFINED if value is None else f"{value:.4f}"


def whole(value: float | None) -> str:
    """A count."""
    return UNDEFINED if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Samples a second, without the unit."""
    return UNDEFINED if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def usd(value: float | None) -> str:
    """An amount in USD: cents from a dollar on, below that two significant digits: 1,234.50, 0.042, 0.00031 USD."""
    if value is None:
        return UNDEFINED
    cents_suffice = abs(value) >= 1 or round(value, 2) == value
    digits = 2 if cents_suffice else 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{digits}f} USD"


def duration(seconds: float | None) -> str:
    """Return one or two units, and seconds below 1 in two digits: 0.057 s, 14.2 s, 3 min 5 s, 2 h 10 min, 3 d 4 h."""
    if seconds is None:
        return UNDEFINED
    if 0 < seconds < 0.995:
        return f"{seconds:.{1 - math.floor(math.log10(seconds))}f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400:,} d {whole % 86400 // 3600} h"


def batch_time(seconds: float | None) -> str:
    """Seconds of one batch, in milliseconds: 0.41 ms, 31.2 ms."""
    return UNDEFINED if seconds is None else f"{seconds * 1e3:.2f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


def short(value: float) -> str:
    """A number as the label of an axis: 0.5, 250k, 1.5M, 2B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.6g}{unit}"
    return f"{value:.6g}"


def plural(number: int, noun: str) -> str:
    """A count with its noun: 1 worker, 2 workers."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
