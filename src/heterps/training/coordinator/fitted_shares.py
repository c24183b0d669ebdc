"""FittedShares: how many samples of a round each worker has, by how fast it is (LB-BSP).

    equal    worker-1.0  |====   wait|          fitted   worker-1.0  |=======|
             worker-1.1  |===========|                   worker-1.1  |=======|

[1] a window of rounds is measured: the seconds from the go-ahead to the push, of which each worker's median counts
[2] where the slowest takes much longer than the mean, shares are made anew, to be followed from the next cut on
[3] the next window is twice as long, up to a limit: speeds that last are found soon, and cuts become rare

The gradient of a round is that of the mean over its samples, wherever they are computed, so shares change no result.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from msgspec import structs

from heterps.sync.shares import fitted_sizes
from heterps.training.protocol.layout import Layout

FIRST_WINDOW, LONGEST_WINDOW = 8, 512
UNEQUAL = 1.1
"""Seconds of the slowest worker, as times their mean, from which other shares are worth a cut."""


class FittedShares:
    """Measures the workers of a stage in rounds of `batch_size` samples, and fits their shares if `is_on`."""

    def __init__(self, batch_size: int, *, is_on: bool) -> None:
        self._batch_size, self._is_on, self._window = batch_size, is_on, FIRST_WINDOW
        self._began: dict[str, float] = {}
        self._seconds: dict[str, list[float]] = {}
        self._fitted: Layout | None = None

    def went(self, workers: Iterable[str], now: float) -> None:
        """Record when workers had their go-ahead."""
        self._began |= dict.fromkeys(workers, now)

    def pushed(self, worker: str, now: float) -> None:
        """Record when a worker has pushed its share of a round."""
        if self._is_on:
            self._seconds.setdefault(worker, []).append(now - self._began[worker])

    def wants_cut(self, layout: Layout) -> bool:
        """Whether there are better shares than those of the layout: [1] to [3]."""
        is_measured = all(len(self._seconds.get(worker, ())) >= self._window for worker in layout.workers)
        if self._is_on and self._fitted is None and is_measured and len(layout.workers) > 1:
            self._fitted = self._fit(layout)
            self._seconds, self._window = {}, min(2 * self._window, LONGEST_WINDOW)  # [3]
        return self._fitted is not None

    def take_layout(self, layout: Layout, other: object | None) -> Layout | None:
        """The layout with better shares, if there are any, and no `other` change is under way or has come first."""
        fitted, self._fitted = self._fitted, None
        return fitted if fitted is not None and other is None and fitted.epoch == layout.epoch + 1 else None

    def _fit(self, layout: Layout) -> Layout | None:
        """[2] The layout with shares that fit the measured window; None if those that it has do."""
        medians = [statistics.median(self._seconds[worker]) for worker in layout.workers]
        if max(medians) <= UNEQUAL * statistics.fmean(medians):
            return None
        lanes = [layout.lanes_of(worker) for worker in layout.workers]
        had = [sum(layout.num_of(lane, self._batch_size) for lane in own) for own in lanes]
        sizes = fitted_sizes([s / max(n, 1) for s, n in zip(medians, had, strict=True)], self._batch_size)
        shares = dict.fromkeys(range(layout.num_lanes), 0)
        for own, size in zip(lanes, sizes, strict=True):
            shares |= {lane: size * (i + 1) // len(own) - size * i // len(own) for i, lane in enumerate(own)}
        fitted = structs.replace(layout, shares=tuple(shares.values()), epoch=layout.epoch + 1)
        return None if fitted.shares == layout.shares else fitted
