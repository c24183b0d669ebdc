"""The common base of all policies: timed inputs, the workers that they release, and events for observers.

    on_push(worker, now)    its gradient is on the server          --> workers that may now start an iteration
    on_join(worker, now)    a new worker, as slow as the slowest   --> the same
    on_leave(worker, now)   it finished, left or died              --> the same

A policy is a state machine without clock, thread or randomness: its decisions are a function of these inputs, and a
recorded run can be replayed (`heterps.sync.trace`). A released worker pulls the newest weights, computes one iteration
and pushes.

The lead of a worker is its clock minus the lowest clock of all. The slowest worker never waits, so one always runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from heterps.config.sync import PolicyConfig
from heterps.sync.clocks import Clocks


class Event(NamedTuple):
    """An input or a decision of a policy, with the worker's clock and lead after it. `now` is in seconds.

    Inputs: `pushed`, `dropped` (a push that came too late and must not be applied), `joined`, `left`. Decisions:
    `released` (may start an iteration), `waits`, `granted` (`extra` iterations, including the one that starts now).
    """

    kind: str
    worker: str
    now: float
    clock: int
    lead: int
    extra: int = 0


OnEvent = Callable[[Event], None]


class Policy(ABC):
    """Decides when a worker may start its next iteration. The initial workers start their first one at `now`.

    Invalid inputs raise ValueError and change nothing: an unknown worker, a push of a waiting worker, a worker that
    joins twice, a time before the last one.
    """

    def __init__(
        self, config: PolicyConfig, workers: Iterable[str], *, now: float = 0.0, on_event: OnEvent | None = None
    ) -> None:
        self.config = config
        self.max_lead = 0
        """Largest lead at which an iteration was started."""
        self.rounds = 0
        """Number of finished rounds; only BSP has rounds."""
        self.dropped = 0
        """Number of gradients that came too late and were dropped."""
        self.on_event = on_event
        self.clocks = Clocks(workers)
        self._waiting: dict[str, int] = {}  # worker: the clock at which it began to wait
        self._now = self.begun_at = now
        self.num_inputs = 0

    @property
    def waiting(self) -> list[str]:
        return list(self._waiting)

    def lead(self, worker: str) -> int:
        return self.clocks.lead(worker)

    def takes(self, worker: str) -> bool:  # noqa: ARG002
        """Tell whether to apply a gradient that this worker pushes now; False means that it is too late: drop it."""
        return True

    def on_push(self, worker: str, now: float) -> list[str]:
        """Record that the worker's gradient was applied or dropped; return who may start an iteration, itself first."""
        if worker in self._waiting:
            raise ValueError(f"{worker} pushes while it waits: it has had no go-ahead since its last push")
        self._check(worker, now)
        return self._pushed(worker, now)

    def on_join(self, worker: str, now: float) -> list[str]:
        """Add a worker, with the lowest clock of all or in the current round; it may start at once and is returned."""
        if worker in self.clocks.of:
            raise ValueError(f"{worker} joins, but it is here already: let it leave first")
        self._check_time(now)
        self.clocks.add(worker, self.rounds)
        self._emit("joined", worker, now)
        return [self._go(worker, now)]

    def on_leave(self, worker: str, now: float) -> list[str]:
        """Remove a worker that finished, left or died; return the workers that waited only for it."""
        self._check(worker, now)
        self._emit("left", worker, now)
        before = self.clocks.least
        self._waiting.pop(worker, None)
        self.clocks.remove(worker)
        self._forget(worker)
        return self._moved(before, now)

    @abstractmethod
    def _pushed(self, worker: str, now: float) -> list[str]:
        """Handle a push whose input has been checked; return the released workers."""

    @abstractmethod
    def _moved(self, before: int, now: float) -> list[str]:
        """Release the workers that a departure frees; `before` is the lowest clock before it."""

    def _forget(self, worker: str) -> None:  # noqa: B027
        """Drop the state of a worker that has left."""

    def _go(self, worker: str, now: float) -> str:
        lead = self.clocks.of[worker] - self.clocks.least
        if lead > self.max_lead:
            self.max_lead = lead
        self._waiting.pop(worker, None)
        if self.on_event is not None:
            self._emit("released", worker, now)
        return worker

    def _wait(self, worker: str, now: float) -> None:
        self._waiting[worker] = self.clocks.of[worker]
        self._emit("waits", worker, now)

    def _emit(self, kind: str, worker: str, now: float, extra: int = 0) -> None:
        if self.on_event is not None:
            self.on_event(Event(kind, worker, now, self.clocks.of[worker], self.clocks.lead(worker), extra))

    def _check(self, worker: str, now: float) -> None:
        if worker not in self.clocks.of:
            raise ValueError(f"{worker} is none of the workers: let it join first")
        self._check_time(now)

    def _check_time(self, now: float) -> None:
        if not self._now <= now < inf:  # also when it is not a number
            raise ValueError(f"time goes back: {now} comes after {self._now}")
        self._now = now
        self.num_inputs += 1
