"""One worker as a process of its own: `python -m heterps.launch.worker_process`, started by local.py.

{"job": "run/job.yaml", "folder": "/tmp/...", "servers": {the roster}, "worker": {"name": ..., "stage": ..., ...},
 "log": "run/logs/...", "incarnation": 1}
a message Stop, or the end of input      the end, with the word {"stopped": true}
the end of input before that             the end: it was held in reserve (standby.py) and not needed
an error                                 the end, with {"kind": "ModelError", "error": "..."}: the coordinator may have
                                         heard it as a message, which the end of a process can overtake
SIGTERM                                  the end, with the word {"preempted": true}: somebody needs the machine
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from heterps.config import load_job
from heterps.launch.inline import warm_up
from heterps.launch.socket_worker import work
from heterps.processes import append_to, give_answer, reserve_stdout, watch_input
from heterps.ps.protocol.roster import Roster
from heterps.training.coordinator.failures import kind_and_text
from heterps.training.run.control import clear
from heterps.training.worker.worker import COORDINATOR, WorkerStart
from heterps.wire.keys import load_keys


def main() -> None:
    answers, parent = reserve_stdout(), os.getppid()
    warm_up()
    if not (line := sys.stdin.readline()):
        return
    start = json.loads(line)
    append_to(start["log"])
    ended, terminated = watch_input(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    word: dict[str, Any] = {"stopped": True}
    try:
        _work(start, lambda: ended.is_set() or terminated.is_set())
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        kind, text = kind_and_text(error, start["log"])
        word = {"kind": kind, "error": text}
    if terminated.is_set():
        word = {"preempted": True}
    with suppress(OSError):  # nobody is there any more to hear it
        give_answer(answers, word)
    if os.getppid() != parent:  # nobody else removes the folders of the sockets
        shutil.rmtree(start["folder"], ignore_errors=True)
        clear(Path(start["job"]).parent, parent)
    sys.exit("error" in word)


def _work(start: dict[str, Any], stopped: Callable[[], bool]) -> None:
    worker, folder = msgspec.convert(start["worker"], WorkerStart), start["folder"]
    job = load_job(start["job"])
    work(
        job,
        worker,
        address=f"ipc://{folder}/{worker.name}.{start['incarnation']}",  # an older one may hang, and still listen
        coordinator=f"ipc://{folder}/{COORDINATOR}",
        servers=msgspec.convert(start["servers"], Roster),
        server_keys=load_keys(job.servers.key) if job.servers is not None and job.servers.key is not None else None,
        stopped=stopped,
        log=start["log"],
        incarnation=start["incarnation"],
    )


if __name__ == "__main__":
    main()
