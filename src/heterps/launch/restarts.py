"""Restarts: whether and how a run goes on that lost a worker, a server or a node.

lost --> [may_restart] --yes--> everything is closed --> a new fleet goes on from the last checkpoint
              |
              no --> the run ends with that error, and with advice on how to go on [last_words]
"""

from __future__ import annotations

from collections.abc import Sequence

from heterps.config import Job
from heterps.errors import HeterpsError, PeerLost
from heterps.launch.ray.cluster import NoRay
from heterps.launch.ray.reservations import NoPlace


def may_restart(error: HeterpsError, job: Job, num_restarts: int, signals: Sequence[str]) -> bool:
    """Whether a run continues from its last checkpoint after an error, given its number of restarts and its signals.

    Only a peer that died or was silent can do better the next time: an error of the job (its model, data,
    configuration) would come again, and so would a missing Ray. Servers that run already (`servers.addresses`) may hold
    rows that are newer than the checkpoint, and refuse a second run.
    """
    is_loss = isinstance(error, PeerLost) and not isinstance(error, NoRay)
    return is_loss and num_restarts < job.workers.restarts and not signals and not _has_own_servers(job)


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
