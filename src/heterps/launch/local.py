"""The local launcher: the workers of a plan as processes of this machine, or threads of this one, beside its servers.

this process: coordinator          [server-0] [server-1]        processes, reached by ipc sockets in a folder that
      |  ipc                            ^   ^                   only this user may enter; all end when their input
[worker-1.0] [worker-1.1] --> [worker-2.0]  |                   ends, which it does with this process
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from heterps.config import Job
from heterps.errors import HeterpsError
from heterps.launch.inline import signals, warm_up
from heterps.launch.run_servers import RunningServers, run_servers
from heterps.planning.plan import Plan
from heterps.processes import Child
from heterps.ps.client import JobClient
from heterps.ps.shard import Tables
from heterps.report.figures import plural
from heterps.training.changes import Replanned
from heterps.training.control import Control
from heterps.training.coordinator import Emulated, train_staged
from heterps.training.fleet import STOP_S, Fleet, WorkerLost
from heterps.training.loop import Observer, Outcome
from heterps.training.post import Post
from heterps.training.run import Run
from heterps.training.worker import COORDINATOR, WorkerStart, run_worker
from heterps.wire import Channel, MemoryNetwork, ServerChannel
from heterps.wire.stack import layered


def train_local(
    job: Job,
    run: Run,
    plan: Plan,
    *,
    resume: bool,
    observer: Observer,
    emulated: Emulated | None = None,
    control: Control | None = None,
    received: list[str] | None = None,
) -> Outcome | Replanned:
    """Train `job` by `plan` with processes of this machine. Ctrl-C and SIGTERM end it, with everything saved.

    received  signals, also those that came before
    """
    warm_up()
    job_file = run.folder / "job.yaml"
    firsts = [stage.first for stage in plan.stages]
    with ExitStack() as opened:
        received = opened.enter_context(signals(received))
        servers = opened.enter_context(
            run_servers(
                job,
                job_file,
                observer.waiting,
                firsts=firsts,
                count=plan.servers.count,
                pace=emulated.server_pace if emulated else None,
            )
        )
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="heterps-")))
        num_workers = sum(stage.count for stage in plan.stages)
        observer.waiting(f"starting {plural(num_workers, 'worker')}")
        fleet = opened.enter_context(_fleet(job, job_file, folder, servers))
        return train_staged(
            job,
            run,
            plan,
            fleet,
            resume=resume,
            observer=observer,
            stop=lambda: received[0] if received else None,
            emulated=emulated,
            folder=str(folder),
            control=control,
        )


@contextmanager
def _fleet(job: Job, job_file: Path, folder: Path, servers: RunningServers) -> Iterator[Fleet]:
    if job.workers.channel == "memory":
        threads = ThreadFleet(job, servers)
        try:
            yield threads
        finally:
            threads.close()
        return
    socket = ServerChannel(COORDINATOR, f"ipc://{folder}/{COORDINATOR}")
    channel = layered(socket)
    processes = ProcessFleet(channel, job_file, folder, servers)
    try:
        yield processes
    finally:
        processes.close()
        channel.close()


class ProcessFleet:
    """Workers as processes that find the coordinator's socket, and make their own, in `folder`."""

    def __init__(self, channel: Channel, job_file: Path, folder: Path, servers: RunningServers) -> None:
        self._channel, self._job_file, self._folder, self._servers = channel, job_file, folder, servers
        self._children: dict[str, Child] = {}

    @property
    def channel(self) -> Channel:
        return self._channel

    def start(self, workers: Sequence[WorkerStart]) -> None:
        for worker in workers:
            child = self._children[worker.name] = Child(worker.name, "heterps.launch.worker_process")
            child.send(
                {
                    "job": str(self._job_file),
                    "folder": str(self._folder),
                    "servers": list(self._servers.addresses),
                    "worker": msgspec.to_builtins(worker),
                }
            )

    def stop(self, worker: str, deadline_s: float = STOP_S) -> None:
        self._children.pop(worker).stop(deadline_s)

    def connect(self, tables: Tables) -> JobClient:
        return self._servers.connect(COORDINATOR, tables)

    def check(self) -> None:
        self._servers.check()
        for child in self._children.values():
            if (how := child.ended) is not None:
                raise WorkerLost(child.name, f"{child.name} (process {child.pid}) {how}")

    def close(self) -> None:
        """End all of them: those in peace that can within a while."""
        for child in self._children.values():
            child.release()
        deadline = time.monotonic() + STOP_S
        for child in self._children.values():
            child.stop(max(deadline - time.monotonic(), 0.0))
        self._children = {}


class ThreadFleet:
    """Workers as threads of this process, over a network in memory: quick to start, for tests and for small models."""

    def __init__(self, job: Job, servers: RunningServers) -> None:
        self._job, self._servers = job, servers
        self._network = servers.network or MemoryNetwork()
        self._channel = self._network.channel(COORDINATOR)
        self._threads: dict[str, threading.Thread] = {}
        self._stop = threading.Event()

    @property
    def channel(self) -> Channel:
        return self._channel

    def start(self, workers: Sequence[WorkerStart]) -> None:
        for worker in workers:
            thread = threading.Thread(target=self._run, args=(worker,), name=worker.name, daemon=True)
            self._threads[worker.name] = thread
            thread.start()

    def stop(self, worker: str, deadline_s: float = STOP_S) -> None:
        """A thread cannot be ended by force: one that stays is waited for again at the end."""
        self._threads[worker].join(deadline_s)
        if not self._threads[worker].is_alive():
            del self._threads[worker]

    def connect(self, tables: Tables) -> JobClient:
        return self._servers.connect(COORDINATOR, tables)

    def check(self) -> None:
        """A thread that fails tells the coordinator why itself."""

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads.values():
            thread.join(STOP_S)
        self._channel.close()

    def _run(self, worker: WorkerStart) -> None:
        post = Post(self._network.channel(worker.name))
        try:
            with suppress(HeterpsError):  # the coordinator was told
                run_worker(
                    self._job,
                    worker,
                    post,
                    worker.name,
                    lambda tables: self._servers.connect(worker.name, tables),
                    self._stop.is_set,
                )
        finally:
            post.close()
