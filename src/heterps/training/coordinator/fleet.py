"""Fleet: the workers and servers of a job, wherever a launcher runs them, as the coordinator sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from heterps.errors import HeterpsError
from heterps.ps.client.interface import JobClient
from heterps.ps.client.keeper import News
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.coordinator.failures import PeerDied
from heterps.training.coordinator.journal import ServerPlace
from heterps.training.coordinator.reconfiguration import STOP_S
from heterps.training.protocol.messages import Message
from heterps.training.run.observer import Observer
from heterps.training.worker.mailbox import Envelope
from heterps.training.worker.stage_work import WorkerStart


class WorkerLost(PeerDied):
    """The process of a worker, the `peer`, has ended on its own; or was told to leave by SIGTERM: it `is_preempted`."""

    def __init__(self, peer: str, text: str, cause: HeterpsError | None = None, *, is_preempted: bool = False) -> None:
        super().__init__(peer, text, cause)
        self.is_preempted = is_preempted


class Post(Protocol):
    """How messages go to workers and come from them; a Mailbox is one."""

    def send(self, peer: str, message: Message, values: Mapping[str, Any] | None = None) -> None: ...

    def receive(self, timeout_s: float) -> Envelope | None:
        """The next envelope; None if none came in time. Raises WireError for what is no message."""


class Fleet(Protocol):
    """Everything that it started is gone when the launcher's `with` block ends, however it ends."""

    @property
    def mailbox(self) -> Post:
        """The coordinator's way to the workers."""

    def start(self, workers: Sequence[WorkerStart]) -> None:
        """Start workers. They say Ready when they are; returns before that."""

    def stop(self, worker: str, deadline_s: float = STOP_S) -> None:
        """A worker was told to stop, or is not wanted: wait until it is gone, by force after so long."""

    def connect(self, tables: TableSpecs) -> JobClient:
        """A client of the servers, which hold these tables."""

    def check(self) -> None:
        """Raise PeerLost if a process ended too early, with its name and how; WorkerLost if it is a worker."""

    def take_news(self) -> list[News]:
        """What has happened to servers with mirrors since the last call; nothing where they have none."""

    @property
    def place(self) -> ServerPlace | None:
        """Where servers wait if this process dies; None where they end with it."""

    @property
    def refuses_changes(self) -> str | None:
        """Why workers cannot be added, removed or planned anew; None: they can be."""


def tell_news(all_news: Sequence[News], observer: Observer) -> int:
    """Tell what has happened to servers with mirrors; return how many were lost, without a way back for anybody."""
    for news in all_news:
        (observer.warned if news.is_warning else observer.changed)(news.text)
    return sum(news.is_recovery for news in all_news)
