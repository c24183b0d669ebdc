"""The pace of emulated units: a worker computes for one for real, then waits until the unit's time is over.

    queued  |--op 1--|--op 2--|--op 3--|            what a unit does to one operation after another:
    real    [compute.wait..]                        [1] it starts when it is there and the unit is free
                      +[compute.wait.]              [2] it is over so many emulated seconds later, times the scale
                                +[compute.wait]     [3] what a sleep takes too long (+), or a slow moment of this
            t=0      t=s      t=2s     t=3s             machine, is taken from the next waits

emulation.py says what is emulated, and how the scale is chosen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from heterps.errors import ConfigError
from heterps.training.protocol.emulated_units import FORWARD_SHARE, EmulatedServer, StagePace

MOST_DEBT_S = 0.1
"""Real. So far, or as far as its last operation was long, a unit catches up with what it is behind; then no further: a
machine that is too slow, or was suspended, must not run its units faster than they are for long."""

Clock = Callable[[], float]
Sleep = Callable[[float], object]


class _Unit:
    """An emulated unit's time: real seconds on `clock`, each operation after the one before."""

    def __init__(self, scale: float, clock: Clock, sleep: Sleep) -> None:
        self._scale, self._clock, self._sleep = scale, clock, sleep
        self._free_at = -math.inf  # when the last operation was over, had no sleep been too long
        self._debt_s = 0.0  # how much earlier that was than its return
        self.busy_s = 0.0  # emulated
        self.late_s = 0.0  # real

    def wait(self, seconds: float, began_at: float, ready_at: float | None) -> None:
        """Wait until an operation of so many emulated seconds is over; its real computing `began_at` and ends now."""
        took_s = seconds * self._scale
        self.busy_s += seconds
        self.late_s += max(self._clock() - began_at - took_s, 0.0)
        there_at = min(began_at - self._debt_s, math.inf if ready_at is None else ready_at)
        over_at = max(self._free_at, there_at) + took_s  # [1] [2]
        while (left_s := over_at - self._clock()) > 0:
            self._sleep(left_s)
        ended_at = self._clock()
        self._debt_s = min(ended_at - over_at, max(took_s, MOST_DEBT_S))  # [3]
        self._free_at = ended_at - self._debt_s


class WorkerPace:
    """The pace of a worker: `with pace.forward(num_samples): compute()` is over when the emulated unit's time is.

    ready_at  when the work was there, by the same clock, if it is known: it may be while the unit was busy with other
              work, and what lies between two operations (messages) then takes none of the unit's time

    An exception in it leaves at once.
    """

    def __init__(
        self, pace: StagePace, scale: float, clock: Clock = time.perf_counter, sleep: Sleep = time.sleep
    ) -> None:
        self.stage = pace
        self._clock, self._scale = clock, scale
        self._unit, self._reader = _Unit(scale, clock, sleep), _Unit(scale, clock, sleep)

    def read(self, num_samples: int, ahead: int) -> None:
        """Wait until samples are read, which began at most as long before as reading takes `ahead` times."""
        seconds = self.stage.read_s * num_samples
        now = self._clock()
        self._reader.wait(seconds, now, now - ahead * seconds * self._scale)

    def forward(self, num_samples: int, ready_at: float | None = None) -> AbstractContextManager[None]:
        return self._operation(self.stage.forward_s * num_samples + self.stage.fixed_s * FORWARD_SHARE, ready_at)

    def backward(self, num_samples: int, ready_at: float | None = None) -> AbstractContextManager[None]:
        return self._operation(self.stage.backward_s * num_samples + self.stage.fixed_s * (1 - FORWARD_SHARE), ready_at)

    def fused(self, num_samples: int, ready_at: float | None = None) -> AbstractContextManager[None]:
        """Pace a forward and a backward at once, as the last stage computes them."""
        return self._operation(self.stage.sample_s * num_samples + self.stage.fixed_s, ready_at)

    @property
    def busy_s(self) -> float:
        """Emulated seconds of all operations so far."""
        return self._unit.busy_s

    @property
    def late_s(self) -> float:
        """Real seconds by which computing was longer than it may: the scale is too small for this machine."""
        return self._unit.late_s

    @contextmanager
    def _operation(self, seconds: float, ready_at: float | None) -> Iterator[None]:
        began_at = self._clock()
        yield
        self._unit.wait(seconds, began_at, ready_at)


class NoPace:
    """The pace of a worker that is not emulated: nothing waits."""

    busy_s = 0.0
    late_s = 0.0
    _now: AbstractContextManager[None] = nullcontext()

    def forward(self, num_samples: int, ready_at: float | None = None) -> AbstractContextManager[None]:
        del num_samples, ready_at
        return self._now

    backward = fused = forward

    def read(self, num_samples: int, ahead: int) -> None:
        """Return at once."""


def make_pace(pace: StagePace | None, scale: float) -> WorkerPace | NoPace:
    return NoPace() if pace is None else WorkerPace(pace, scale)


class ServerPace:
    """The pace of a server, for `ps.serve.serve`: called with the bytes of a message and its answers, and its time."""

    def __init__(self, server: EmulatedServer, clock: Clock = time.monotonic, sleep: Sleep = time.sleep) -> None:
        self._server = server
        self._unit = _Unit(server.scale, clock, sleep)

    def __call__(self, num_bytes: int, began_at: float) -> None:
        self._unit.wait(self._server.byte_s * num_bytes, began_at, None)

    def check_memory(self, name: str, num_bytes: int) -> None:
        """Raise ConfigError where the tables of a server need more memory than its unit has."""
        if self._server.memory_bytes is not None and num_bytes > self._server.memory_bytes:
            raise ConfigError(
                f"{name} is out of memory: its tables take {num_bytes:,} bytes, and memory_gb of the cluster gives a "
                f"unit {self._server.memory_bytes:,.0f}. Plan more servers, or limit the tables (admission, eviction, "
                "tiers)."
            )

    @property
    def late_s(self) -> float:
        """Real seconds by which serving was longer than it may: the scale is too small for this machine."""
        return self._unit.late_s


class DilatedClock:
    """Emulated seconds since its start, at `start_s`, without those that it was paused for."""

    def __init__(self, scale: float = 1.0, start_s: float = 0.0, clock: Clock = time.perf_counter) -> None:
        self._scale, self._clock = scale, clock
        self._before_s = start_s
        self._since: float | None = clock()  # None: paused

    def now(self) -> float:
        if self._since is None:
            return self._before_s
        return self._before_s + (self._clock() - self._since) / self._scale

    def pause(self) -> None:
        """Stand still, as for a checkpoint, until `resume`. Both may be called twice."""
        self._before_s, self._since = self.now(), None

    def resume(self) -> None:
        if self._since is None:
            self._since = self._clock()
