"""Fleet: the workers and servers of a job, wherever a launcher runs them, as the coordinator sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from heterps.ps.client.local import JobClient
from heterps.ps.protocol.specs import Tables
from heterps.training.coordinator.failures import PeerDied
from heterps.training.worker.worker import WorkerStart
from heterps.wire import Channel

STOP_S = 10.0
"""For a worker to leave in peace."""


class WorkerLost(PeerDied):
    """The process of a worker, the `peer`, has ended on its own."""


class Fleet(Protocol):
    """Everything that it started is gone when the launcher's `with` block ends, however it ends."""

    @property
    def channel(self) -> Channel:
        """The coordinator's end, by which workers reach it."""

    def start(self, workers: Sequence[WorkerStart]) -> None:
        """Start workers. They say Ready when they are; returns before that."""

    def stop(self, worker: str, deadline_s: float = STOP_S) -> None:
        """A worker was told to stop, or is not wanted: wait until it is gone, by force after so long."""

    def connect(self, tables: Tables) -> JobClient:
        """A client of the servers, which hold these tables."""

    def check(self) -> None:
        """PeerLost, with the name of whoever ended that should not have, and how; WorkerLost if it is a worker."""
