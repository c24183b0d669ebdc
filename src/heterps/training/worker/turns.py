"""What a worker does next: of the micro-batches whose values or gradients have come, which it takes through its layers.

    a worker of stage 1 of 3, lanes 0 to 3, at most 2 in flight      F forward, B backward

        F0 F1 B0 F2 B1 F3 B2 B3

Gradients go before values: they free memory, and the stage before waits for them. In rounds both are taken in the order
of lanes, so that gradients are added up in the same order in every run: whatever comes early waits. That cannot block:
the lowest lane of a round that is not done is the next in turn at every worker that it still has to pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import Literal, NamedTuple

Key = tuple[int, int]
"""Iteration and lane."""


class Due(NamedTuple):
    does: Literal["forward", "backward"]
    key: Key


class Turns:
    """`in_flight` micro-batches may have gone forward and not come back."""

    def __init__(self, in_flight: int) -> None:
        self._in_flight = in_flight
        self._values: deque[Key] = deque()
        self._gradients: deque[Key] = deque()
        self._order: tuple[deque[Key], deque[Key]] | None = None  # of forwards and backwards, in a round
        self._out: set[Key] = set()

    def begin_round(self, keys: Iterable[Key]) -> None:
        """Take the micro-batches of these lanes, in this order."""
        ordered = list(keys)
        self._order = deque(ordered), deque(ordered)

    def values_came(self, key: Key) -> None:
        self._values.append(key)

    def gradients_came(self, key: Key) -> None:
        self._gradients.append(key)

    def next(self) -> Due | None:
        """Return the next turn, if there is one; it counts as done."""
        if (key := _take(self._gradients, self._order and self._order[1])) is not None:
            self._out.discard(key)
            return Due("backward", key)
        if (
            len(self._out) < self._in_flight
            and (key := _take(self._values, self._order and self._order[0])) is not None
        ):
            self._out.add(key)
            return Due("forward", key)
        return None

    def came_back(self, key: Key) -> None:
        """Count a micro-batch of the last stage as returned: its backward needs no gradients from elsewhere."""
        self._out.discard(key)
        if self._order is not None:
            self._order[1].remove(key)

    @property
    def num_waiting(self) -> int:
        """The number of micro-batches that this worker could compute now."""
        return len(self._values) + len(self._gradients)

    @property
    def out(self) -> set[Key]:
        """The micro-batches that went on to the next stage, and whose gradients have not come."""
        return self._out - set(self._gradients)

    def forget(self, lanes: Container[int] | None = None) -> None:
        """Forget what is under way in these lanes; None: in all, and the order of a round."""
        self._order = None if lanes is None else self._order
        self._values = deque(key for key in self._values if lanes is not None and key[1] not in lanes)
        self._gradients = deque(key for key in self._gradients if lanes is not None and key[1] not in lanes)
        self._out = {key for key in self._out if lanes is not None and key[1] not in lanes}


def _take(came: deque[Key], order: deque[Key] | None) -> Key | None:
    """Return the next in the order, if it came; without an order, the first that came."""
    if not came or (order is not None and (not order or order[0] not in came)):
        return None
    if order is None:
        return came.popleft()
    key = order.popleft()
    came.remove(key)
    return key
