"""Emulation: units that are not on this machine. A worker computes for real, then waits until its time is over.

One time scale holds for the whole job: `scale` real seconds for each emulated one. So units that are faster than this
machine can be emulated too, and everything that people see is in emulated seconds (DilatedClock).

    queued  |--op 1--|--op 2--|--op 3--|            what a unit does to one operation after another:
    real    [compute.wait..]                        [1] it starts when it is there and the unit is free
                      +[compute.wait.]              [2] it is over so many emulated seconds later, times the scale
                                +[compute.wait]     [3] what a sleep takes too long (+), or a slow moment of this
            t=0      t=s      t=2s     t=3s             machine, is taken from the next waits

Pace, by the cost model (planning/cost.py): k workers of a stage keep busy with a batch of B samples for ET(k) seconds,
each with a k-th of it, so that a worker takes ET(k) k / B seconds a sample: a third of it forward, two thirds backward.
Where communication is longer than compute it stretches both alike, for the worker waits for it.

Servers: all of them see every push, and a batch makes the same number n of updates of tables. With V / count seconds a
batch (V is the sum of server_s) each update keeps a server busy for V / count / n, and one of p parts of a round for a
p-th of that, however many workers there are. So the seconds of a batch are right, but not when they pass: pulls, which
are a part of V, are paid for with the pushes. A last batch that is short counts as a whole one, a part of a table that
is loaded, at the start of a run, as an update; and a dense table with fewer values than there are servers keeps only
those busy that have one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import ROUND_CEILING, Context
from itertools import islice
from typing import Annotated

import torch
from msgspec import Meta, Struct

from heterps.config import Cluster, Job
from heterps.data.reader import open_reader
from heterps.devices import is_available
from heterps.errors import ConfigError
from heterps.model import build_model
from heterps.profiling.profile import Profile
from heterps.profiling.units import num_cores
from heterps.threads import torch_threads
from heterps.training.model.trainer import Trainer
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.predicted import batch_seconds, busy_seconds

FORWARD_SHARE = 1 / 3
"""Of the compute of a batch: backward computes the gradients of inputs and of weights, about as much each."""

ALLOWANCE = 3.0
"""Of this machine's work for a batch over computing alone: reading, messages and servers are the rest."""

BUSY = 0.5
"""The part of the emulated time that this machine may be busy: more, and slow moments would show."""

OPERATION_S = 0.003
"""Real. What taking a micro-batch through a stage in one direction costs besides computing: Python, messages, rows."""

LEAST_BATCH_S = 0.25
"""Real. Go-aheads and acknowledgements between two batches take milliseconds that no emulated unit spends."""

LEAST_SCALE = 0.01

MOST_DEBT_S = 0.1
"""Real. So far, or as far as its last operation was long, a unit catches up with what it is behind; then no further: a
machine that is too slow, or was suspended, must not run its units faster than they are for long."""

Clock = Callable[[], float]
Sleep = Callable[[float], object]

# --- what the profile says -------------------------------------------------------------------------------------------


class StagePace(Struct, frozen=True):
    """Emulated seconds that one worker of a stage takes for a sample."""

    forward_s: Annotated[float, Meta(ge=0)]
    backward_s: Annotated[float, Meta(ge=0)]


def stage_seconds(profile: Profile, cluster: Cluster, layout: Layout, batch_size: int) -> list[StagePace]:
    """The pace of each stage, with as many workers as `layout` has: another layout, another pace.

    Raises ConfigError where the profile is of other layers, or has no cost for a layer on the resource of its stage.
    """
    paces = []
    for stage, busy_s in zip(layout.stages, busy_seconds(profile, cluster, layout, batch_size), strict=True):
        sample_s = busy_s * len(stage.workers) / batch_size
        paces.append(StagePace(sample_s * FORWARD_SHARE, sample_s * (1 - FORWARD_SHARE)))
    return paces


def lacks_devices(job: Job, resources: Iterable[str]) -> list[str]:
    """Those of the resources of the job's cluster that it cannot run on, because this machine has no such device.

    None where units are emulated, or on a Ray cluster at an address, whose nodes have devices that are not here.
    """
    is_elsewhere = job.launcher == "ray" and job.ray_address is not None
    if is_elsewhere or job.emulation is not None:
        return []
    return [name for name in dict.fromkeys(resources) if not is_available(job.cluster.resources[name].device)]


# --- what this machine can keep up with ------------------------------------------------------------------------------


def choose_scale(job: Job, profile: Profile, layout: Layout, num_servers: int) -> float:
    """The job's own scale; where it has none, as many real seconds for an emulated one as this machine needs."""
    if job.emulation is not None and job.emulation.scale is not None:
        return job.emulation.scale
    tau_s = batch_seconds(profile, job.cluster, layout, num_servers, job.data.batch_size)
    fewest = min(len(stage.workers) for stage in layout.stages)
    return max(needed_scale(measure_batch_s(job), tau_s, num_cores(), fewest), least_scale(job, layout, tau_s))


def least_scale(job: Job, layout: Layout, tau_s: float) -> float:
    """The scale below which what is not computing would show, however little there is to compute."""
    micro_batches = layout.num_lanes if job.sync.in_rounds else 1
    busy_s = OPERATION_S * 2 * micro_batches * len(layout.stages) / num_cores() / BUSY
    return _rounded_up((LEAST_BATCH_S + busy_s) / tau_s)


def needed_scale(real_batch_s: float, tau_s: float, num_cores: int, fewest_workers: int = 1) -> float:
    """The least scale, in two digits, at which a machine of so many cores keeps up, at most half busy.

    real_batch_s    what one core computes for a batch; all the work of a batch is ALLOWANCE times as much
    tau_s           emulated seconds between two batches
    fewest_workers  of a stage: each computes on one core, whatever others there are, and a stage may have most of the
                    work of this machine however little that is on its own units

    A stage that is far from being the slowest may still be late; throughput does not suffer, and late_s tells.
    """
    if tau_s <= 0:
        raise ConfigError("the profile says that a batch takes no time, which no machine can emulate: profile again.")
    core_s = max(ALLOWANCE * real_batch_s / num_cores, real_batch_s / fewest_workers)
    return max(_rounded_up(core_s / BUSY / tau_s), LEAST_SCALE)


def _rounded_up(number: float) -> float:
    """To two digits."""
    return float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(number)))


def measure_batch_s(job: Job, clock: Clock = time.thread_time) -> float:
    """Seconds that one core takes for forward and backward of a batch of the whole model."""
    reader = open_reader(job)
    model = build_model(job.model, job.data.columns, job.seed)
    with (
        torch.random.fork_rng(devices=[]),
        torch_threads(1),
        Trainer(
            model,
            job.optimizers,
            tables=job.tables,
            seed=job.seed,
            columns=job.data.columns,
            precision=job.precision,
        ) as trainer,
    ):
        batches = [batch for batch, _ in islice(reader.read(), 2)]
        trainer.gradients(batches[0])  # compiles, and fills the caches
        began = clock()
        trainer.gradients(batches[-1])
        return (clock() - began) * job.data.batch_size / len(batches[-1])


# --- keeping to it ---------------------------------------------------------------------------------------------------


class _Unit:
    """An emulated unit's time: real seconds on `clock`, each operation after the one before."""

    def __init__(self, scale: float, clock: Clock, sleep: Sleep) -> None:
        self._scale, self._clock, self._sleep = scale, clock, sleep
        self._free_at = -math.inf  # when the last operation was over, had no sleep been too long
        self._debt_s = 0.0  # how much earlier that was than its return
        self.busy_s = 0.0  # emulated
        self.late_s = 0.0  # real

    def wait(self, seconds: float, began_at: float, ready_at: float | None) -> None:
        """Until an operation of so many emulated seconds is over, whose real computing `began_at` and ends now."""
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


class Pace:
    """The pace of a worker: `with pace.forward(num_samples): compute()` is over when the emulated unit's time is.

    ready_at  when the work was there, by the same clock, if it is known: it may be while the unit was busy with other
              work, and what lies between two operations (messages) then takes none of the unit's time

    An exception in it leaves at once.
    """

    def __init__(
        self, pace: StagePace, scale: float, clock: Clock = time.perf_counter, sleep: Sleep = time.sleep
    ) -> None:
        self.stage = pace
        self._clock = clock
        self._unit = _Unit(scale, clock, sleep)

    def forward(self, num_samples: int, ready_at: float | None = None) -> AbstractContextManager[None]:
        return self._operation(self.stage.forward_s * num_samples, ready_at)

    def backward(self, num_samples: int, ready_at: float | None = None) -> AbstractContextManager[None]:
        return self._operation(self.stage.backward_s * num_samples, ready_at)

    def fused(self, num_samples: int, ready_at: float | None = None) -> AbstractContextManager[None]:
        """Forward and backward at once, as the last stage has it."""
        return self._operation((self.stage.forward_s + self.stage.backward_s) * num_samples, ready_at)

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
    """The pace of a worker that is not emulated: its own."""

    busy_s = 0.0
    late_s = 0.0
    _now: AbstractContextManager[None] = nullcontext()

    def forward(self, num_samples: int, ready_at: float | None = None) -> AbstractContextManager[None]:
        del num_samples, ready_at
        return self._now

    backward = fused = forward


def make_pace(pace: StagePace | None, scale: float) -> Pace | NoPace:
    return NoPace() if pace is None else Pace(pace, scale)


class ServerPace:
    """The pace of a server, for `ps.serve.serve`: called with the updates that a message brought, and when it came."""

    def __init__(
        self,
        batch_s: float,
        updates_a_batch: int,
        scale: float,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """`batch_s` as `server_seconds` gives it; `updates_a_batch` are those of all tables: one each in rounds, whose
        parts are parts of it, else one for each stage that uses the table."""
        self._update_s = batch_s / updates_a_batch
        self._unit = _Unit(scale, clock, sleep)

    def __call__(self, updates: float, began_at: float) -> None:
        self._unit.wait(self._update_s * updates, began_at, None)

    @property
    def late_s(self) -> float:
        """As that of Pace."""
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
