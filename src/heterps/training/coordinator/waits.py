"""What the coordinator waits for, for how long, and what to say where that takes too long."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Sequence
from typing import NamedTuple

from heterps.errors import GraceOver, PeerLost


class Wait(NamedTuple):
    """The walk goes on when `is_so`; where that takes longer than the deadline, with PeerLost and what `late` says."""

    is_so: Callable[[], bool]
    deadline_s: float | None = None
    late: Callable[[float], str] = lambda _: ""
    since: float = 0.0

    def check(self, now: float) -> None:
        if self.deadline_s is not None and now - self.since > self.deadline_s and not self.is_so():
            raise PeerLost(self.late(self.deadline_s))


class Grace:
    """How long a job may take to end after SIGTERM: whoever sent that will kill it. After Ctrl-C nobody does."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s, self._began = grace_s, math.inf

    def begin(self, reason: str, now: float) -> None:
        self._began = now if reason == "SIGTERM" else math.inf

    def evaluates(self, now: float) -> bool:
        """Whether there is time for more than to save: until half of the time is over."""
        return now - self._began < self._grace_s / 2

    def check(self, now: float) -> None:
        if now - self._began > self._grace_s:
            raise GraceOver(
                f"the run was told to end (SIGTERM), and did not save within {self._grace_s:g} s, which is "
                "checkpoint.grace_s. --resume goes on from the checkpoint before"
            )


Walk = Generator[Wait, None, None]


def not_ready(missing: Callable[[], Sequence[str]], waited_s: float) -> str:
    return f"{', '.join(missing())} did not start within {waited_s:.0f} s: alive, but not ready"


def not_assigned(wanted: set[tuple[str, int]], assigned: set[tuple[str, int]], waited_s: float) -> str:
    missing = sorted(worker for worker, _ in wanted - assigned)
    return f"{', '.join(missing)} did not take their place in the layout within {waited_s:.0f} s"


def not_told(asked: Sequence[str], told: Collection[str], waited_s: float) -> str:
    missing = (worker for worker in asked if worker not in told)
    return f"{', '.join(missing)} did not give their state within {waited_s:.0f} s"


def too_silent(silent: Sequence[str], deadline_s: float, clock: int) -> str:
    return (
        f"the coordinator has waited {deadline_s:g} s for {', '.join(silent[:5])}"
        f"{' and others' if len(silent) > 5 else ''}: alive, but without news, at clock {clock:,}. "
        "workers.deadline_s of the job says how long to wait"
    )
