"""One worker as a process of its own: `python -m heterps.launch.worker_process`, started by local.py.

{"job": "run/job.yaml", "folder": "/tmp/...", "servers": ["ipc://..."], "worker": {"name": ..., "stage": ..., ...}}
the end of input, SIGTERM, or a message Stop                                                                the end
"""

from __future__ import annotations

import json
import signal
import sys
import threading

import msgspec

from heterps.config import load_job
from heterps.errors import HeterpsError
from heterps.launch.socket_worker import work
from heterps.training.worker import COORDINATOR, WorkerStart


def main() -> None:
    start = json.loads(sys.stdin.readline())
    stopped = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stopped,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    folder = start["folder"]
    worker = msgspec.convert(start["worker"], WorkerStart)
    try:
        work(
            load_job(start["job"]),
            worker,
            address=f"ipc://{folder}/{worker.name}",
            coordinator=f"ipc://{folder}/{COORDINATOR}",
            servers=start["servers"],
            stopped=stopped.is_set,
        )
    except HeterpsError:
        sys.exit(1)  # the coordinator was told


def _wait_for_end_of_input(ended: threading.Event) -> None:
    while sys.stdin.readline():
        pass
    ended.set()


if __name__ == "__main__":
    main()
