"""The profile of a job: its model, on a batch of its own data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from heterps.catalogue import LOCAL
from heterps.config import Job
from heterps.data.batch import Batch
from heterps.data.reader import Reader
from heterps.model.build import build_model
from heterps.model.trace import Layer
from heterps.profiling.batches import random_batch
from heterps.profiling.profile import Profile
from heterps.profiling.profiler import profile

READING_S = 0.5
"""What is spent on reading to know what reading costs."""


def profile_job(
    job: Job,
    resources: Sequence[str] | None = None,
    *,
    synthetic: bool = False,
    budget_s: float = 10.0,
    progress: Callable[[Layer, int], None] | None = None,
) -> Profile:
    """Profile the job's model on `resources`, by default those of its cluster, with a batch of its training data.

    A `synthetic` batch needs no data; what reading costs is then estimated from its bytes.
    """
    model = build_model(job.model, job.data.columns, job.seed)
    batch, read_s = _random(job) if synthetic else _first_batch(job)
    return profile(
        model,
        batch,
        resources or cluster_resources(job),
        name=job.model.factory,
        optimizers=job.optimizers,
        budget_s=budget_s,
        read_s=read_s,
        progress=progress,
    )


def cluster_resources(job: Job) -> list[str]:
    """The job's resources as the profiler takes them: offers by their device, each once; other CPUs as cores of this
    machine."""
    words = []
    for name, resource in job.cluster.resources.items():
        offer = job.cluster.offer(name)
        words.append(offer.device if offer else f"{name}={LOCAL}" if resource.device == "cpu" else name)
    return list(dict.fromkeys(words))


def _random(job: Job) -> tuple[Batch, None]:
    return random_batch(job.data.columns, job.data.batch_size, job.seed), None


def _first_batch(job: Job) -> tuple[Batch, float]:
    """The first batch of training, and the seconds that one core takes to read such a batch."""
    reader = Reader(job.data.train, job.data.columns, batch_size=job.data.batch_size, seed=job.seed)
    first, _ = next(reader.read())  # opens files and compiles kernels: not timed
    samples, began = 0, time.process_time()
    for batch, _ in reader.read():  # rows are decoded a block at a time: one batch alone would not tell
        samples += len(batch)
        if time.process_time() - began > READING_S:
            break
    return first, (time.process_time() - began) * len(first) / samples
