"""A worker that speaks over sockets, in whatever process a launcher runs it.

the stage before, coordinator  -->  [listening]  worker  [reaching]  -->  coordinator, the stage after
                                                   |
                                                [client]  -->  servers
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from heterps.config import Job, Servers
from heterps.launch.inline import warm_up
from heterps.launch.run_servers import START_S
from heterps.launch.servers import client_options
from heterps.ps.client.connect import connect
from heterps.ps.client.interface import JobClient
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.worker.mailbox import Mailbox
from heterps.training.worker.worker import COORDINATOR, PATIENCE, WorkerStart, run_worker
from heterps.wire import ClientChannel, ServerChannel
from heterps.wire.keys import Keys
from heterps.wire.stack import layered, resending


def work(
    job: Job,
    worker: WorkerStart,
    *,
    address: str,
    coordinator: str,
    servers: Roster,
    stopped: Callable[[], bool],
    keys: Keys | None = None,
    server_keys: Keys | None = None,
    client: str | None = None,
    incarnation: int = 1,
    log: str = "",
) -> None:
    """Listens at `address`, connects to the coordinator and the `servers`, and works as `run_worker` does.

    keys         of the job's workers and coordinator
    server_keys  of its servers
    client       the worker's name among the clients of the servers; none: its own
    incarnation  how many times this worker has been started
    log          file for the traceback of an error
    """
    torch.set_num_threads(1)  # a worker is one unit
    listening = ServerChannel(worker.name, address, keys=keys)
    reaching = ClientChannel(worker.name, {}, keys=keys, life=incarnation)
    port = worker.port
    patience_s = PATIENCE * job.workers.deadline_s
    stack = layered if keys is None else partial(resending, deadline_s=patience_s)  # or between machines
    ways = stack(listening, port=port), stack(reaching, port=port)
    mailbox = Mailbox(*ways, reaching.connect, job.workers.values)
    how = job.servers or Servers()

    def reach(tables: TableSpecs) -> JobClient:
        warm_up()  # while the servers start
        reached = connect(
            client or worker.name,
            servers,
            tables,
            incarnation=incarnation,
            keys=server_keys,
            options=client_options(how, tables, port),
            faults=how.faults,
            seed=job.seed,
            start_s=START_S,
            port=port,
        )
        if incarnation > 1:  # from now on the servers refuse what may still come from the one before
            reached.greet().result()
        return reached

    try:
        mailbox.connect({COORDINATOR: coordinator})
        run_worker(job, worker, mailbox, listening.address, reach, stopped, log)
    finally:
        mailbox.close()
