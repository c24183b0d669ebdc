"""What a session has under way: calls, the messages that carry them, and a line of both for each server."""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from heterps.ps.ops.base import Call
from heterps.ps.protocol.roster import Seat
from heterps.wire import Frame

LATER_S = 0.05
"""A request that a server asks to come later for is sent again after this, then after twice as long each time."""


@dataclass
class PendingCall:
    """A call and the servers that have not answered it yet."""

    call: Call
    future: Future[Any]
    clock: int  # pushes to the table when it was made
    since: float
    after_round: int = 0
    deadline: float | None = None  # set when it or the greeting before it is first sent; a new roster does not move it
    waiting: set[int] = field(default_factory=set)


@dataclass
class Flight:
    """A message that waits for its answer."""

    parts: list[Frame]
    calls: list[PendingCall]
    num_bytes: int
    deadline: float
    retry_at: float
    retry_s: float
    after_round: int = 0  # servers answer it when that is over
    is_unsent: bool = False  # the channel did not take it
    later_s: float = LATER_S


@dataclass
class Line:
    """The queue of calls and the messages under way to one server."""

    seat: Seat
    greeted: bool = False
    due: bool = False
    queue: deque[PendingCall] = field(default_factory=deque)
    flights: dict[int, Flight] = field(default_factory=dict)  # by request id
    mirror: Seat | None = None
    probe_at: float = math.inf  # when the mirror is asked for the roster; inf: nothing is waited for
    refresh_at: float = -math.inf
    heard_at: float | None = None  # when an answer came last

    def in_credit(self, rounds: int) -> list[Flight]:
        """The messages under way that can be answered now that rounds up to this number are over."""
        return [flight for flight in self.flights.values() if flight.after_round <= rounds]
