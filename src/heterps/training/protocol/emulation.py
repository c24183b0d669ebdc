"""Emulation: units that are not on this machine. A worker computes for real, then waits until its time is over.

One time scale holds for the whole job: `scale` real seconds for each emulated one. So units that are faster than this
machine can be emulated too, and everything that people see is in emulated seconds. The clock and the waits are in
pacing.py.

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
from collections.abc import Iterable
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
from heterps.training.protocol.emulated_units import stage_seconds
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.pacing import Clock

ALLOWANCE = 3.0
"""This machine's work for a batch, as times computing alone: reading, messages and servers are the rest."""

BUSY = 0.5
"""The part of the emulated time that this machine may be busy: more, and slow moments would show."""

OPERATION_S = 0.003
"""Real. What taking a micro-batch through a stage in one direction costs besides computing: Python, messages, rows."""

LEAST_BATCH_S = 0.25
"""Real. Go-aheads and acknowledgements between two batches take milliseconds that no emulated unit spends."""

LEAST_SCALE = 0.01


def lacks_devices(job: Job, resources: Iterable[str]) -> list[str]:
    """Those of the resources of the job's cluster that it cannot run on, because this machine has no such device.

    None where units are emulated, or on a Ray cluster at an address, whose nodes have devices that are not here.
    """
    if job.is_elsewhere or job.emulation is not None:
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
    """The least scale, in two digits, at which a machine with this number of cores keeps up, at most half busy.

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
