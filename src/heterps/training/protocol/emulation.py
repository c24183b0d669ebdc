"""Emulation: units that are not on this machine. A worker computes for real, then waits until its time is over.

One time scale holds for the whole job: `scale` real seconds for each emulated one. So units that are faster than this
machine can be emulated too, and everything that people see is in emulated seconds (DilatedClock).

    queued  |--op 1--|--op 2--|--op 3--|            what a unit does to one operation after another:
    real    [compute.wait..]                        [1] it starts when it is there and the unit is free
                      +[compute.wait.]              [2] it is over so many emulated seconds later, times the scale
                                +[compute.wait]     [3] what a sleep takes too long (+), or a slow moment of this
            t=0      t=s      t=2s     t=3s             machine, is taken from the next waits

Everything is paced by what was measured of one unit, and nothing by the formulas of the planner:

    compute   a sample takes compute_s / batch_size of one unit, a third of it forward; a micro-batch also what does not
              grow with the batch. k workers have a k-th of the samples each: what that does not divide shows by itself.
    reading   a worker of the first stage reads its share of a batch ahead of use, a sample in input_s / batch_size
    network   every message passes the ports of both machines (wire/ports.py): port_gbps of the cluster, or where it has
              none the bytes by the seconds that the profile gives for moving parameters and inputs on one unit
    servers   a byte that a server takes in or hands out takes server_s over the bytes of a batch; one server does one
              message after the other
    memory    a worker or server that holds more than memory_gb of its unit fails

So waits at the end of a round, queues at servers and crowded ports come out of the real protocol. What is not emulated:
the traffic of an all-reduce among workers, and the ports of the coordinator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import ROUND_CEILING, Context
from itertools import islice

import torch

from heterps.config import Cluster, Job
from heterps.data.reader import open_reader
from heterps.devices import is_available
from heterps.errors import ConfigError
from heterps.model import build_model
from heterps.profiling.profile import Profile
from heterps.profiling.units import num_cores
from heterps.threads import torch_threads
from heterps.training.model.trainer import Trainer
from heterps.training.protocol.emulated_units import FORWARD_SHARE, EmulatedServer, StagePace, stage_seconds
from heterps.training.protocol.layout import Layout

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
    tau_s = busiest_s(profile, job.cluster, layout, num_servers, job.data.batch_size)
    fewest = min(len(stage.workers) for stage in layout.stages)
    return max(needed_scale(measure_batch_s(job), tau_s, num_cores(), fewest), least_scale(job, layout, tau_s))


def busiest_s(profile: Profile, cluster: Cluster, layout: Layout, num_servers: int, batch_size: int) -> float:
    """Seconds that a batch keeps the busiest unit computing, if its samples are divided evenly; it takes no less."""
    stages = zip(layout.stages, stage_seconds(profile, cluster, layout), strict=True)
    compute_s = [pace.sample_s * batch_size / len(stage.workers) + pace.fixed_s for stage, pace in stages]
    servers_s = math.fsum(layer.server_s for layer in profile.layers) * batch_size / profile.batch_size
    return max(*compute_s, servers_s / num_servers if num_servers else 0.0)


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
    """Round a number up to two digits."""
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
