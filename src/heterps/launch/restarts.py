"""Restarts: whether and how a run goes on that lost a worker, a server or a node.

lost --> [Restarts] --yes--> everything is closed --> a new fleet goes on from the last checkpoint
              |
              no --> the run ends with that error, and with advice on how to go on [last_words]
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from heterps.config import Job
from heterps.errors import HeterpsError, PeerLost
from heterps.launch.ray.cluster import NoRay
from heterps.launch.ray.reservations import NoPlace
from heterps.training.coordinator.loss_budget import LossBudget


class Restarts:
    """How often a run has been restarted. So many may be within an hour; the first is at once, others after a while.

    Only a peer that died or was silent can do better the next time: an error of the job (its model, data,
    configuration) would come again, and so would a Ray that was missing from the beginning. Servers that run already
    (`servers.addresses`) may hold rows that are newer than the checkpoint, and refuse a second run.
    """

    def __init__(self, job: Job) -> None:
        self._budget = LossBudget(job.workers.restarts, job.workers.backoff_s)

    @property
    def num(self) -> int:
        """Number of restarts within the last hour."""
        return self._budget.num

    def next_start(
        self, error: HeterpsError, job: Job, signals: Sequence[str], now: float, *, has_begun: bool
    ) -> float | None:
        """When a run continues from its last checkpoint after an error; None: it ends.

        signals    that were sent to the run
        has_begun  whether it trained before, so that a Ray that is out of reach now may come back
        """
        is_loss = isinstance(error, PeerLost) and (has_begun or not isinstance(error, NoRay))
        return self._budget.next_start(now) if is_loss and not signals and not _has_own_servers(job) else None


def wait_until(start_at: float, signals: Sequence[str], poll_s: float = 0.05) -> None:
    """Wait until that monotonic time, or until a signal comes."""
    while time.monotonic() < start_at and not signals:
        time.sleep(poll_s)


def restart_words(error: HeterpsError, samples: int | None, number: int, job: Job) -> str:
    """What to tell the user about restart `number`, from a checkpoint of that many samples, if there is one."""
    where = "from its beginning" if samples is None else f"from its last checkpoint, at {samples:,} samples"
    return f"{error}. The job goes on {where}: restart {number} of {job.workers.restarts}"


def last_words(error: HeterpsError, lost: str, job: Job, num_restarts: int) -> str | None:
    """What the error that ends a run after that many restarts should say, with advice. None: the error as it is.

    lost  the loss after which the run had just begun again; "": none
    """
    text = str(error).removesuffix(".")
    if isinstance(error, NoPlace | NoRay):
        if not lost:
            return None  # nothing had begun
        text = f"{lost}. It could not be replaced: {text}"
    if job.checkpoint.every_samples is None and job.checkpoint.every_minutes is None:
        return None  # there is nothing to go on from
    resume = "go on from the last checkpoint with --resume"
    if _has_own_servers(job):
        advice = f"Start the servers of the job anew (they keep what they had learned), and {resume}"
    elif not job.has_workers:
        advice = f"The run can {resume}"
    elif num_restarts:
        advice = f"The job was restarted {num_restarts} of {job.workers.restarts} times (workers.restarts); {resume}"
    else:
        advice = f"The run can {resume}, or by itself with workers.restarts (--restarts) above 0"
    return f"{text}. {advice}"


def _has_own_servers(job: Job) -> bool:
    return job.servers is not None and bool(job.servers.addresses)
