"""Staleness of gradients: how many updates of others were applied between a worker's pull and its push."""

from __future__ import annotations


class Staleness:
    """Counts updates of the weights. A round of BSP is one update, and no gradient in it is stale."""

    __slots__ = ("_read", "counts", "version")

    def __init__(self) -> None:
        self.version = 0
        """Number of updates applied so far."""
        self.counts: dict[int, int] = {}
        """Number of gradients by staleness."""
        self._read: dict[str, int] = {}

    def pulled(self, worker: str) -> None:
        self._read[worker] = self.version

    def pushed(self, worker: str, *, is_update: bool = True) -> int:
        """Return the staleness of the gradient, which is applied now, or kept for its round (`is_update` False)."""
        staleness = self.version - self._read[worker]
        self.counts[staleness] = self.counts.get(staleness, 0) + 1
        self.version += is_update
        return staleness

    def end_round(self) -> None:
        """Record that the gradients kept for the round were applied, as one update."""
        self.version += 1

    @property
    def mean(self) -> float | None:
        """Mean staleness of all gradients; None before the first push."""
        pushes = sum(self.counts.values())
        return sum(staleness * count for staleness, count in self.counts.items()) / pushes if pushes else None
