"""The inline launcher: worker and coordinator are this one process, and so are the servers unless the job has some."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np

from heterps.config import SGD, Adagrad, Adam, Job
from heterps.launch.run_servers import run_servers
from heterps.ps.client.local import JobClient, LocalClient
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.specs import Tables, TableSpec
from heterps.ps.table.dense import DenseTable
from heterps.threads import torch_threads
from heterps.training.run.control import Control
from heterps.training.run.folder import Run
from heterps.training.run.loop import Observer, Outcome, train_job

WORKER = "worker-0"


def train_inline(job: Job, run: Run, *, resume: bool, observer: Observer) -> Outcome:
    """Trains `job` in this process. Ctrl-C and SIGTERM end the run after the current step, with everything saved."""
    warm_up()
    with (
        torch_threads(job.num_threads),
        signals() as received,
        Control(run.folder) as control,
        _connected(job, run, observer) as connect,
    ):
        return train_job(
            job,
            run,
            resume=resume,
            observer=observer,
            stop=lambda: received[0] if received else None,
            connect=connect,
            control=control,
        )


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
def _connected(job: Job, run: Run, observer: Observer) -> Iterator[Callable[[Tables], JobClient] | None]:
    """Connects the trainer to the servers of a job that has some, while the context lasts."""
    if job.servers is None:
        yield None
        return
    with run_servers(job, run.folder / "job.yaml", observer.waiting) as running:
        yield lambda tables: running.connect(WORKER, tables)


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
