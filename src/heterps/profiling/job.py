"""Profile a job: its model, on a batch of its own data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal

from heterps.catalogue import LOCAL
from heterps.config import Job
from heterps.data.fit import fit_job
from heterps.data.reader import open_reader
from heterps.devices import is_cpu
from heterps.model.trace import Layer
from heterps.profiling.profile import Profile
from heterps.profiling.profiler import profile
from heterps.profiling.servers import TABLE_BYTES
from heterps.profiling.source import ModelSource
from heterps.profiling.units import NUM_UNITS, Units, num_cores

READING_S = 0.5
"""Processor seconds spent on measuring how fast the data is read."""

UnitsFrom = Literal["processes", "parts"]


def profile_job(
    job: Job,
    resources: Sequence[str] | None = None,
    *,
    synthetic: bool = False,
    inputs: str | None = None,
    budget_s: float = 10.0,
    units: UnitsFrom = "processes",
    progress: Callable[[Layer, int], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Profile:
    """Profile the job's model on `resources`, by default those of its cluster, with a batch of its training data.

    synthetic  use a random batch, which needs no data
    inputs     use random inputs of these shapes per sample ("16,3x32x32"). In both cases the cost of reading is
               estimated from the bytes of the inputs
    budget_s   seconds to spend on measuring
    units      how alpha and beta of this machine's cores are fitted: from real runs in two `processes` at once, or
               from `parts` of the batch in this process
    progress   called with each layer and the number of layers before it is measured
    warn       called with a warning if the machine has one core, so that parts are used instead of processes
    """
    source = ModelSource(job, synthetic, inputs)
    if source.reads_data:
        job = fit_job(job)
        source = ModelSource(job)
    model, values = source.build()
    words = list(resources) if resources else cluster_resources(job)
    return profile(
        model,
        values,
        words,
        name=job.model.factory,
        optimizers=job.optimizers,
        precision=job.precision,
        budget_s=budget_s,
        read_s=_reading_s(job) if source.reads_data else None,
        table_bytes=_table_bytes(job),
        units=lambda: _start(source, words, units, warn),
        progress=progress,
    )


def _table_bytes(job: Job) -> int:
    """Bytes that tables may take while they are measured: at most what they may take in the run itself."""
    return min(TABLE_BYTES, job.table_budget_bytes or TABLE_BYTES)


def _start(
    source: ModelSource, words: Sequence[str], units: UnitsFrom, warn: Callable[[str], None] | None
) -> Units | nullcontext[None]:
    """Start the processes, if they are wanted, a core of this machine is profiled and there are enough cores."""
    if units == "parts" or not any(word.rpartition("=")[2] == LOCAL for word in words):
        return nullcontext()
    if num_cores() < NUM_UNITS:
        if warn:
            warn(
                f"This machine has one core, and {NUM_UNITS} units at once need one each: alpha and beta are fitted "
                "from parts of the batch, and do not show what units take from each other."
            )
        return nullcontext()
    return Units(source)


def cluster_resources(job: Job) -> list[str]:
    """The cluster's resources as arguments of the profiler: offers by their device, other CPUs as `name=cpu`."""
    words = []
    for name, resource in job.cluster.resources.items():
        offer = job.cluster.offer(name)
        words.append(offer.device if offer else f"{name}={LOCAL}" if is_cpu(resource.device) else name)
    return list(dict.fromkeys(words))


def _reading_s(job: Job) -> float:
    """Seconds that one core takes to read one training batch."""
    reader = open_reader(job)
    first, _ = next(reader.read())  # opens files and compiles kernels: not timed
    samples, began = 0, time.process_time()
    for batch, _ in reader.read():  # rows are decoded a block at a time, so one batch would not be representative
        samples += len(batch)
        if time.process_time() - began > READING_S:
            break
    return (time.process_time() - began) * len(first) / samples
