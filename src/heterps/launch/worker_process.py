"""One worker as a process of its own: `python -m heterps.launch.worker_process`, started by local.py.

{"job": "run/job.yaml", "folder": "/tmp/...", "servers": ["ipc://..."], "worker": {"name": ..., "stage": ..., ...}}
the end of input, SIGTERM, or a message Stop                                                                the end
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

import msgspec
import torch

from heterps.config import Servers, load_job
from heterps.errors import HeterpsError
from heterps.launch.servers import client_options, first_roster
from heterps.ps.client import JobClient
from heterps.ps.connect import connect
from heterps.ps.shard import Tables
from heterps.training.post import Post
from heterps.training.worker import COORDINATOR, WorkerStart, run_worker
from heterps.wire import ClientChannel, ServerChannel
from heterps.wire.stack import layered


def main() -> None:
    start = json.loads(sys.stdin.readline())
    stopped = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stopped,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    torch.set_num_threads(1)  # a worker is one unit
    job = load_job(start["job"])
    worker = msgspec.convert(start["worker"], WorkerStart)
    folder = Path(start["folder"])
    listening = ServerChannel(worker.name, f"ipc://{folder}/{worker.name}")
    reaching = ClientChannel(worker.name, {})
    post = Post(layered(listening), layered(reaching), reaching.connect)
    post.connect({COORDINATOR: f"ipc://{folder}/coordinator"})
    roster, servers = first_roster(start["servers"]), job.servers or Servers()

    def reach(tables: Tables) -> JobClient:
        options = client_options(servers, tables)
        return connect(worker.name, roster, tables, options=options, faults=servers.faults, seed=job.seed)

    try:
        run_worker(job, worker, post, listening.address, reach, stopped.is_set)
    except HeterpsError:
        sys.exit(1)  # the coordinator was told
    finally:
        post.close()


def _wait_for_end_of_input(ended: threading.Event) -> None:
    while sys.stdin.readline():
        pass
    ended.set()


if __name__ == "__main__":
    main()
