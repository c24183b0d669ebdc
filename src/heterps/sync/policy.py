"""What all policies share: inputs with their time, the workers that may go on, and events to look at.

    on_push(worker, now)    its gradient is on the server          --> workers that may now start an iteration
    on_join(worker, now)    a new worker, as slow as the slowest   --> the same
    on_leave(worker, now)   it finished, left or died              --> the same

A policy is a state machine without clock, thread or chance: what it decides is a function of these inputs, and a
recorded run can be played again (`heterps.sync.trace`). Whoever is released pulls the newest weights, iterates, pushes.

The lead of a worker is its clock less the lowest clock of all. The slowest never waits, so somebody always runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from math import inf
from typing import ClassVar, NamedTuple

from heterps.config.sync import PolicyConfig
from heterps.sync.clocks import Clocks


class Event(NamedTuple):
    """Something that a policy was told or decided, with the worker's clock and lead after it.

    CommandReply: `pushed`, `dropped` (a push that came too late and must not be applied), `joined`, `left`. Decided:
    `released` (may start an iteration), `waits`, `granted` (`extra` iterations, the one it starts now among them).
    """

    kind: str
    worker: str
    now: float
    clock: int
    lead: int
    extra: int = 0


OnEvent = Callable[[Event], None]


class Policy(ABC):
    """When a worker may start its next iteration. All workers that it begins with start their first one at `now`.

    Inputs that cannot be raise ValueError and change nothing: an unknown worker, a push of one that waits, a worker
    that joins twice, a time before the last one.
    """

    by_rounds: ClassVar[bool] = False
    """Whether the gradients of a round are applied together, as their mean, when `rounds` moves; else each at once."""

    def __init__(
        self, config: PolicyConfig, workers: Iterable[str], *, now: float = 0.0, on_event: OnEvent | None = None
    ) -> None:
        self.config = config
        self.max_lead = 0
        """The largest lead at which an iteration was started."""
        self.rounds = 0
        self.dropped = 0
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
        """Whether a gradient that this worker pushes now is to be applied. False: it comes too late, drop it."""
        return True

    def on_push(self, worker: str, now: float) -> list[str]:
        """The worker's gradient has been applied (or dropped). Returns who may start an iteration, itself first."""
        if worker in self._waiting:
            raise ValueError(f"{worker} pushes while it waits: it has had no go-ahead since its last push")
        self._check(worker, now)
        return self._pushed(worker, now)

    def on_join(self, worker: str, now: float) -> list[str]:
        """The worker joins with the lowest clock of all, or in the round that runs, and may start at once."""
        if worker in self.clocks.of:
            raise ValueError(f"{worker} joins, but it is here already: let it leave first")
        self._check_time(now)
        self.clocks.add(worker, self.rounds)
        self._tell("joined", worker, now)
        return [self._go(worker, now)]

    def on_leave(self, worker: str, now: float) -> list[str]:
        """The worker finished, left or died. Returns those who waited for it alone."""
        self._check(worker, now)
        self._tell("left", worker, now)
        before = self.clocks.least
        self._waiting.pop(worker, None)
        self.clocks.remove(worker)
        self._forget(worker)
        return self._moved(before, now)

    @abstractmethod
    def _pushed(self, worker: str, now: float) -> list[str]:
        """What `on_push` does once its input is known to be good."""

    @abstractmethod
    def _moved(self, before: int, now: float) -> list[str]:
        """Release those for whom it is enough that a worker left; the lowest clock was `before`."""

    def _forget(self, worker: str) -> None:  # noqa: B027
        """A worker has left."""

    def _go(self, worker: str, now: float) -> str:
        lead = self.clocks.of[worker] - self.clocks.least
        if lead > self.max_lead:
            self.max_lead = lead
        self._waiting.pop(worker, None)
        if self.on_event is not None:
            self._tell("released", worker, now)
        return worker

    def _wait(self, worker: str, now: float) -> None:
        self._waiting[worker] = self.clocks.of[worker]
        self._tell("waits", worker, now)

    def _tell(self, kind: str, worker: str, now: float, extra: int = 0) -> None:
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
