"""The local launcher: the workers of a plan as processes of this machine, or threads of this one, beside its servers.

this process: coordinator          [server-0] [server-1]        processes, reached by ipc sockets in a folder that
      |  ipc                            ^   ^                   only this user may enter; all end when their input
[worker-1.0] [worker-1.1] --> [worker-2.0]  |                   ends, which it does with this process

What a worker prints, and the traceback of its error, is in logs/<worker>.log of the run.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from heterps.config import Job
from heterps.errors import HeterpsError
from heterps.launch.inline import signals, warm_up
from heterps.launch.run_servers import lost_child, run_servers
from heterps.launch.running_servers import RunningServers
from heterps.launch.standby import Standby
from heterps.planning.plan import Plan
from heterps.processes import Adopted, Child
from heterps.ps.client.interface import JobClient
from heterps.ps.client.keeper import News
from heterps.ps.protocol.specs import TableSpecs
from heterps.report.figures import plural
from heterps.threads import torch_threads
from heterps.training.coordinator.failures import error_of, kind_and_text
from heterps.training.coordinator.fleet import Fleet, WorkerLost
from heterps.training.coordinator.journal import STARTS_A_LIFE, Head, ServerPlace
from heterps.training.coordinator.reconfiguration import STOP_S
from heterps.training.coordinator.starts import Emulated
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer
from heterps.training.worker.mailbox import Mailbox
from heterps.training.worker.worker import COORDINATOR, WorkerStart, run_worker
from heterps.wire import Channel, MemoryNetwork, ServerChannel
from heterps.wire.address import socket_folder
from heterps.wire.ports import Limited
from heterps.wire.stack import layered

FAILED_S = 2.0
"""Seconds that workers get to end by themselves after an error: one may wait for another that is gone."""


@contextmanager
def local_fleet(
    job: Job,
    run: Run,
    plan: Plan,
    *,
    observer: Observer,
    emulated: Emulated | None,
    received: list[str],
    left: Head | None = None,
) -> Iterator[tuple[Fleet, str]]:
    """Servers and workers for `plan` on this machine and a folder for their sockets; all are removed at the end.

    received  gets the names of the signals that come
    left      what a coordinator that was killed has left: its servers are taken over
    """
    warm_up()
    job_file, logs = run.folder / "job.yaml", run.folder / "logs"
    with ExitStack() as opened:
        opened.enter_context(signals(received))
        servers = opened.enter_context(
            run_servers(
                job,
                job_file,
                observer.waiting,
                count=plan.servers.count,
                emulated=emulated.server if emulated else None,
                logs=logs,
                left=left,
            )
        )
        folder = opened.enter_context(socket_folder())
        observer.waiting(f"starting {plural(sum(stage.count for stage in plan.stages), 'worker')}")
        life = 1 if left is None else left.life
        yield opened.enter_context(_fleet(job, job_file, folder, servers, logs, life)), str(folder)


@contextmanager
def _fleet(job: Job, job_file: Path, folder: Path, servers: RunningServers, logs: Path, life: int) -> Iterator[Fleet]:
    with ExitStack() as opened:
        fleet: ThreadFleet | ProcessFleet
        if job.workers.channel == "memory":
            opened.enter_context(torch_threads(1))  # a worker is one unit
            fleet = ThreadFleet(job, servers, logs)
        else:
            channel = layered(ServerChannel(COORDINATOR, f"ipc://{folder}/{COORDINATOR}"))
            opened.callback(channel.close)
            standby = Standby(logs, is_wanted=job.workers.replacements > 0)
            opened.callback(standby.close)
            fleet = ProcessFleet(channel, job_file, folder, servers, standby, life)
        try:
            yield fleet
        except BaseException:
            fleet.close(FAILED_S)
            raise
        fleet.close(STOP_S)


class ProcessFleet:
    """Workers as processes, which find the coordinator's socket and make their own in `folder`.

    life  how many coordinators the job has had
    """

    refuses_changes = None

    def __init__(
        self, channel: Channel, job_file: Path, folder: Path, servers: RunningServers, standby: Standby, life: int
    ) -> None:
        self.mailbox = Mailbox(channel)
        self._job_file, self._folder, self._servers = job_file, folder, servers
        self._standby = standby
        self._children: dict[str, Child] = {}
        self._stages: dict[str, int] = {}
        self._before = (life - 1) * STARTS_A_LIFE
        self._starts: Counter[str] = Counter()

    @property
    def place(self) -> ServerPlace | None:
        return self._servers.place

    def start(self, workers: Sequence[WorkerStart]) -> None:
        for worker in workers:
            child = self._children[worker.name] = self._standby.take(worker.name)
            self._stages[worker.name] = worker.stage
            self._starts[worker.name] += 1
            child.send(
                {
                    "job": str(self._job_file),
                    "folder": str(self._folder),
                    "servers": msgspec.to_builtins(self._servers.roster()),
                    "worker": msgspec.to_builtins(worker),
                    "log": str(child.log),
                    "incarnation": self._before + self._starts[worker.name],
                }
            )

    def stop(self, worker: str, deadline_s: float = STOP_S) -> None:
        self._children.pop(worker).stop(deadline_s)

    def connect(self, tables: TableSpecs) -> JobClient:
        return self._servers.connect(COORDINATOR, tables)

    def take_news(self) -> list[News]:
        return self._servers.take_news()

    def check(self) -> None:
        self._standby.tend()
        self._servers.check()
        stages: dict[Child | Adopted, str]
        stages = {child: f"stage {self._stages[name] + 1}" for name, child in self._children.items()}
        if (lost := lost_child(stages)) is not None:
            is_preempted = self._children[lost.peer].was_told_to_leave
            raise WorkerLost(lost.peer, str(lost), lost.cause, is_preempted=is_preempted)

    def close(self, within_s: float) -> None:
        """Ends all processes: waits a while for those that end by themselves, then kills the rest."""
        children, self._children = list(self._children.values()), {}
        deadline = time.monotonic() + within_s
        try:
            for child in children:
                child.release()
            for child in children:
                child.stop(max(deadline - time.monotonic(), 0.0))
        except BaseException:  # interrupted
            for child in children:
                child.close()
            raise


class ThreadFleet:
    """Workers as threads of this process, over a network in memory: quick to start, for tests and for small models."""

    refuses_changes = place = None

    def __init__(self, job: Job, servers: RunningServers, logs: Path) -> None:
        self._job, self._servers, self._logs = job, servers, logs
        self._network = servers.network or MemoryNetwork()
        self.mailbox = Mailbox(self._network.channel(COORDINATOR))
        self._threads: dict[str, threading.Thread] = {}
        self._failures: dict[str, HeterpsError] = {}
        self._left: set[str] = set()
        self._stop = threading.Event()

    def start(self, workers: Sequence[WorkerStart]) -> None:
        for worker in workers:
            thread = threading.Thread(target=self._run, args=(worker,), name=worker.name, daemon=True)
            self._threads[worker.name] = thread
            thread.start()

    def stop(self, worker: str, deadline_s: float = STOP_S) -> None:
        """Asks a worker to stop. A thread cannot be killed: one that stays is waited for again in `close`."""
        self._left.add(worker)
        self._threads[worker].join(deadline_s)
        if not self._threads[worker].is_alive():
            del self._threads[worker]

    def connect(self, tables: TableSpecs) -> JobClient:
        return self._servers.connect(COORDINATOR, tables)

    def take_news(self) -> list[News]:
        return []

    def check(self) -> None:
        self._servers.check()
        for worker, error in self._failures.items():
            if worker not in self._left:
                raise WorkerLost(worker, str(error), error)

    def close(self, within_s: float) -> None:
        """Waits until all threads have ended: they cannot be killed."""
        self._stop.set()
        deadline = time.monotonic() + within_s
        for thread in self._threads.values():
            thread.join(max(deadline - time.monotonic(), 0.0))
        self.mailbox.close()

    def _run(self, worker: WorkerStart) -> None:
        log = self._logs / f"{worker.name}.log"
        try:
            self._work(worker, str(log))
        except (Exception, SystemExit) as error:
            kind, text = kind_and_text(error, str(log))
            self._failures[worker.name] = error_of(kind, f"{worker.name}: {text}")
            with suppress(OSError):
                self._logs.mkdir(exist_ok=True)
                with log.open("a", encoding="utf-8") as file:
                    traceback.print_exc(file=file)

    def _work(self, worker: WorkerStart, log: str) -> None:
        channel: Channel = self._network.channel(worker.name)
        if worker.port is not None:
            channel = Limited(channel, worker.port)
        mailbox = Mailbox(channel, coding=self._job.workers.values)
        try:
            run_worker(
                self._job,
                worker,
                mailbox,
                worker.name,
                lambda tables: self._servers.connect(worker.name, tables, worker.port),
                self._stop.is_set,
                log,
            )
        finally:
            mailbox.close()
