"""The inline launcher: coordinator and one worker in this one process, and the tables too unless the job has servers.

    coordinator --send--> [to_worker] --> worker: handles, computes
                <--receive-- [to_coordinator] <--send--

Messages are plain calls: whenever the coordinator waits for one, the worker does what it can do next, on the same
thread. The worker has all cores of the run; it divides each batch among as many threads (training/model/replicas.py).
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import numpy as np

from heterps.config import SGD, Adagrad, Adam, Job
from heterps.launch.run_servers import run_servers
from heterps.launch.running_servers import RunningServers
from heterps.planning.plan import Plan
from heterps.ps.client.interface import JobClient
from heterps.ps.client.keeper import News
from heterps.ps.client.local import LocalClient, in_process
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import TableSpec, TableSpecs
from heterps.ps.table.dense import DenseTable
from heterps.threads import quick_switches, torch_threads
from heterps.training.coordinator.fleet import Fleet
from heterps.training.coordinator.reconfiguration import STOP_S
from heterps.training.coordinator.starts import Emulated
from heterps.training.protocol.messages import Message, Ready
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer
from heterps.training.worker.mailbox import Envelope
from heterps.training.worker.worker import COORDINATOR, Worker, WorkerStart
from heterps.wire.address import socket_folder


@contextmanager
def inline_fleet(
    job: Job, run: Run, plan: Plan, *, observer: Observer, emulated: Emulated | None, received: list[str]
) -> Iterator[tuple[Fleet, str]]:
    """A worker in this process, and servers if the job has some; all are gone at the end.

    received  gets the names of the signals that come
    """
    del plan, emulated  # it has one stage, on this machine
    warm_up()
    with ExitStack() as opened:
        opened.enter_context(signals(received))
        opened.enter_context(torch_threads(job.num_threads))
        opened.enter_context(quick_switches())
        servers: RunningServers | None = None
        if job.servers is not None:
            servers = opened.enter_context(run_servers(job, run.folder / "job.yaml", observer.waiting))
        fleet = InlineFleet(job, servers)
        opened.callback(fleet.close)
        yield fleet, str(opened.enter_context(socket_folder()))


class InlineFleet:
    """One worker that works while the coordinator waits for it."""

    place = None
    refuses_changes = "an inline run has no workers to change: stop it, and resume it with --launcher local"

    def __init__(self, job: Job, servers: RunningServers | None) -> None:
        self._job, self._servers = job, servers
        self._client: LocalClient | None = None
        self._worker: Worker | None = None
        self._to_worker, self._to_coordinator = _Box(), _Box()
        self._opened = ExitStack()

    @property
    def mailbox(self) -> InlineFleet:
        return self

    def start(self, workers: Sequence[WorkerStart]) -> None:
        (start,) = workers
        mailbox = _Mailbox(self._to_worker, self._to_coordinator)
        self._worker = Worker(self._job, start, mailbox, lambda tables: self._connect(start.name, tables))
        self._opened.callback(self._worker.close)
        mailbox.send(COORDINATOR, Ready(start.name, ""))

    def stop(self, worker: str, deadline_s: float = STOP_S) -> None:
        raise NotImplementedError(f"{worker}, the only one of an inline run, leaves with it after {deadline_s} s")

    def connect(self, tables: TableSpecs) -> JobClient:
        return self._connect(COORDINATOR, tables)

    def take_news(self) -> list[News]:
        return [] if self._servers is None else self._servers.take_news()

    def check(self) -> None:
        if self._servers is not None:
            self._servers.check()

    def close(self) -> None:
        self._opened.close()

    def send(self, peer: str, message: Message, values: Mapping[str, Any] | None = None) -> None:
        del peer
        self._to_worker.append(Envelope(COORDINATOR, message, None if values is None else dict(values)))

    def receive(self, timeout_s: float) -> Envelope | None:
        """The worker's next message. It is worked for, however long that takes, unless the worker waits itself."""
        worker = self._worker
        if worker is None:  # it did not start, or has failed: nothing more comes of it
            time.sleep(timeout_s)
            return None
        try:
            while not self._to_coordinator:
                if not (worker.take_in() or worker.compute() or worker.wait_for_pushes()):
                    return None
        except BaseException:
            self._worker = None
            raise
        return self._to_coordinator.popleft()

    def _connect(self, name: str, tables: TableSpecs) -> JobClient:
        if self._servers is not None:
            return self._servers.connect(name, tables)
        if self._client is None:
            self._client = in_process(tables, self._job.num_threads)
        return self._client


_Box = deque[Envelope]


class _Mailbox:
    """The worker's end. Pushes may be acknowledged on another thread, and deques take that."""

    border_bytes = 0  # there is one stage

    def __init__(self, incoming: _Box, outgoing: _Box) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def connect(self, addresses: Mapping[str, str]) -> None:
        """There is nobody else."""

    def forget(self, peer: str) -> None:
        """There is nobody else."""

    def send(self, peer: str, message: Message, values: Mapping[str, Any] | None = None) -> None:
        del peer
        self._outgoing.append(Envelope("worker", message, None if values is None else dict(values)))

    def receive(self, timeout_s: float) -> Envelope | None:
        del timeout_s
        return self._incoming.popleft() if self._incoming else None


def warm_up() -> None:
    """Compiles the kernels, or loads compiled ones, so that the first step is as fast as the others."""
    lookup = make_lookup(np.arange(2, dtype=np.uint64))
    for optimizer in (SGD(), Adagrad(), Adam()):
        client = LocalClient([TableSpec("t", 1, optimizer, 0, 0.0)], {"d": DenseTable(1, optimizer)})
        client.pull("t", lookup)
        client.push("t", lookup, np.zeros((2, 1), np.float32))
        client.push_dense("d", np.zeros(1, np.float32))
        client.close()


@contextmanager
def signals(received: list[str] | None = None) -> Iterator[list[str]]:
    """Collects the names of the signals `received` so far. A second Ctrl-C interrupts at once, without saving.

    Further signals do not disturb the cleanup after that, which takes seconds at most.
    """
    received = [] if received is None else received
    interrupted: list[bool] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number).name)
        if len(received) > 1 and number == signal.SIGINT and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    on_main_thread = threading.current_thread() is threading.main_thread()  # only it may set handlers
    numbers = (signal.SIGINT, signal.SIGTERM) if on_main_thread else ()
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
