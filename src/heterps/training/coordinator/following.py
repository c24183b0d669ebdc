"""Following: whether somebody uses the model of a job while it trains, and when the next version for them is due.

    follower --Follow(every_s)--> [lease of LEASE_S] --due--> a cut, Publish --> due again every_s later
             --Follow, again-->   [renewed]

Without a lease nothing is ever due, so that a job without followers spends nothing on them.
"""

from __future__ import annotations

import math

LEASE_S = 15.0
"""Who does not ask again within this time follows no longer."""
PAUSE = 4.0
"""Seconds to wait after a version, as times those that it took: most of the time is for training, however large a model
is."""


class Following:
    """All followers of a job. `now` is in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._leases: dict[float, float] = {}  # seconds between versions that somebody wants, and until when
        self._began = -math.inf  # when the last version was begun
        self._not_before = -math.inf
        self._clock: int | None = None  # of the last version

    def ask(self, every_s: float, now: float) -> None:
        """Make versions for LEASE_S from now on, as often as the follower wants who wants most of them."""
        self._leases = {wanted: until for wanted, until in self._leases.items() if until > now}
        self._leases[every_s] = now + LEASE_S

    def is_on(self, now: float) -> bool:
        """Whether anybody follows."""
        return any(until > now for until in self._leases.values())

    def is_due(self, clock: int, now: float) -> bool:
        """Whether a version is to be made of the model, which has seen `clock` updates."""
        every_s = min((wanted for wanted, until in self._leases.items() if until > now), default=math.inf)
        return now >= max(self._began + every_s, self._not_before) and self.is_behind(clock, now)

    def is_behind(self, clock: int, now: float) -> bool:
        """Whether followers have no version of this clock."""
        return self.is_on(now) and clock != self._clock

    def begin(self, now: float) -> None:
        """Record that a version is being made."""
        self._began = now

    def end(self, clock: int, now: float) -> None:
        """Record that the version of `clock` was made, or could not be: the next is due later."""
        self._clock = clock
        self._not_before = now + PAUSE * (now - self._began)
