"""What the coordinator's walk waits for, and what to say where that takes too long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import NamedTuple

from heterps.errors import PeerLost


class Wait(NamedTuple):
    """The walk goes on when `is_so`; where that takes longer than the deadline, with PeerLost and what `late` says."""

    is_so: Callable[[], bool]
    deadline_s: float | None = None
    late: Callable[[float], str] = lambda _: ""
    since: float = 0.0

    def check(self, now: float) -> None:
        if self.deadline_s is not None and now - self.since > self.deadline_s and not self.is_so():
            raise PeerLost(self.late(self.deadline_s))


Walk = Generator[Wait, None, None]


def not_ready(missing: Callable[[], Sequence[str]], waited_s: float) -> str:
    return f"{', '.join(missing())} did not start within {waited_s:.0f} s: alive, but not ready"


def not_assigned(wanted: set[tuple[str, int]], assigned: set[tuple[str, int]], waited_s: float) -> str:
    missing = sorted(worker for worker, _ in wanted - assigned)
    return f"{', '.join(missing)} did not take their place in the layout within {waited_s:.0f} s"


def not_told(asked: Sequence[str], told: Collection[str], waited_s: float) -> str:
    missing = (worker for worker in asked if worker not in told)
    return f"{', '.join(missing)} did not give their state within {waited_s:.0f} s"


def too_silent(silent: Sequence[str], deadline_s: float) -> str:
    return (
        f"the coordinator has waited {deadline_s:g} s for {', '.join(silent[:5])}"
        f"{' and others' if len(silent) > 5 else ''}: alive, but without news. workers.deadline_s of the job "
        "says how long to wait"
    )
