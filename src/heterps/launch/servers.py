"""A server as a process: its tables from the job, its channel, and a clean end when told to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np

from heterps.config import Job
from heterps.errors import ConfigError
from heterps.model.build import build_model
from heterps.nn import embeddings
from heterps.ps.roster import Roster, Seat
from heterps.ps.serve import serve
from heterps.ps.server import Server
from heterps.ps.shard import DenseSpec, Tables, make_table
from heterps.wire.keys import Keys
from heterps.wire.zmq_channel import ServerChannel

DENSE = "dense"


def job_tables(job: Job) -> Tables:
    """What the servers of a job hold: the tables of its model's embeddings, and all its other parameters as one."""
    model = build_model(job.model, job.data.columns, job.seed)
    sparse = [
        spec for name, module in embeddings(model) for spec in module.table_specs(name, job.optimizers.sparse, job.seed)
    ]
    size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return Tables(tuple(sparse), (DenseSpec(DENSE, size, job.optimizers.dense),))


def first_roster(addresses: Sequence[str]) -> Roster:
    """The roster that a job begins with: a server an address."""
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"every server needs an address of its own, got {', '.join(addresses)}")
    return Roster(tuple(Seat(f"server-{number}", address) for number, address in enumerate(addresses)), len(addresses))


def run_server(server: Server, address: str, *, keys: Keys | None, ready: Callable[[str], None]) -> None:
    """Serve at `address` until SIGTERM or SIGINT; `ready` is told where the server listens."""
    _warm_up(server)
    with _stop_signals() as stopped:
        channel = ServerChannel(server.name, address, keys=keys)
        try:
            ready(channel.address)
            serve(server, channel, stopped)
        finally:
            channel.close()
            if address.startswith("ipc://"):  # ZeroMQ leaves the file of its socket behind
                Path(address.removeprefix("ipc://")).unlink(missing_ok=True)


def _warm_up(server: Server) -> None:
    """Compile the kernels, or load them compiled, before the first worker waits: messages bring read-only arrays."""
    keys, grads = np.zeros(1, np.uint64), np.zeros((1, 1), np.float32)
    for optimizer in {spec.optimizer for spec in server.tables.sparse}:
        table = make_table(next(spec for spec in server.tables.sparse if spec.optimizer == optimizer))
        grads = np.zeros((1, table.dim), np.float32)
        for writeable in (True, False):
            keys.flags.writeable = grads.flags.writeable = writeable
            table.pull(keys)
            table.push_unique(keys, grads)
        keys.flags.writeable = True


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or SIGINT has come; before and after, they do what they did."""
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
