"""Restarts: whether and how a run goes on that lost a worker, a server or a node.

lost --> [Restarts] --yes--> everything is closed --> a new fleet goes on from the last checkpoint
              |
              no --> the run ends with that error, and with advice on how to go on [Restarts.last_words]
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from heterps.config import Job
from heterps.errors import HeterpsError, PeerLost
from heterps.launch.ray.cluster import NoRay
from heterps.launch.ray.reservations import NoPlace
from heterps.training.coordinator.loss_budget import LossBudget

BY_DEFAULT = 3
"""How often within an hour a run that has a checkpoint is restarted if the job does not say it."""


class Restarts:
    """How often a run has been restarted. So many may be within an hour; the first is at once, others after a while.
    A job that does not say how many is restarted only from a checkpoint: a loss before the first may come of how it was
    set up, and who saves nothing would begin anew without end.

    Only a peer that died or was silent can do better the next time: an error of the job (its model, data,
    configuration) would come again, and so would a Ray that was missing from the beginning. Servers that run already
    (`servers.addresses`) may hold rows that are newer than the checkpoint, and refuse a second run.
    """

    def __init__(self, job: Job) -> None:
        said = job.workers.restarts
        self.most = BY_DEFAULT if said is None else said
        self._needs_checkpoint = said is None
        self._budget = LossBudget(self.most, job.workers.backoff_s)

    @property
    def num(self) -> int:
        """Number of restarts within the last hour."""
        return self._budget.num

    def next_start(
        self,
        error: HeterpsError,
        job: Job,
        signals: Sequence[str],
        now: float,
        *,
        has_begun: bool,
        has_checkpoint: bool,
    ) -> float | None:
        """When a run continues from its last checkpoint after an error; None: it ends.

        signals         that were sent to the run
        has_begun       whether it trained before, so that a Ray that is out of reach now may come back
        has_checkpoint  whether there is one to continue from, and not only its beginning
        """
        is_loss = isinstance(error, PeerLost) and (has_begun or not isinstance(error, NoRay))
        may_restart = not signals and not _has_own_servers(job) and (has_checkpoint or not self._needs_checkpoint)
        return self._budget.next_start(now) if is_loss and may_restart else None

    def words(self, error: HeterpsError, samples: int | None) -> str:
        """What to tell the user about this restart, from a checkpoint of that many samples, if there is one."""
        where = "from its beginning" if samples is None else f"from its last checkpoint, at {samples:,} samples"
        return f"{error}. The job goes on {where}: restart {self.num} of {self.most}"

    def last_words(self, error: HeterpsError, lost: str, job: Job, *, has_checkpoint: bool) -> str | None:
        """What the error that ends a run should say, with advice. None: the error as it is.

        lost            the loss after which the run had just begun again; "": none
        has_checkpoint  whether there is one to continue from
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
        elif self.num:
            advice = f"The job was restarted {self.num} of {self.most} times (workers.restarts); {resume}"
        elif not has_checkpoint:
            again = " by itself with workers.restarts (--restarts) above 0" if job.has_workers else ""
            advice = f"There is no checkpoint yet: the run can only begin again{again}"
        elif not job.has_workers:
            advice = f"The run can {resume}"
        else:
            advice = f"The run can {resume}, or by itself with workers.restarts (--restarts) above 0"
        return f"{text}. {advice}"


def wait_until(start_at: float, signals: Sequence[str], poll_s: float = 0.05) -> None:
    """Wait until that monotonic time, or until a signal comes."""
    while time.monotonic() < start_at and not signals:
        time.sleep(poll_s)


def _has_own_servers(job: Job) -> bool:
    return job.servers is not None and bool(job.servers.addresses)
