"""One server of a run as a process of its own: `python -m heterps.launch.server_process`, started by run_servers.py.

{"job": "run/job.yaml", "roster": {...}, "name": "server-0", ...}     starts, while the coordinator makes the model
{"tables": {...}}                                                     -->  {"address": "ipc://..."}  it listens
"dismissed"                                                           the end
SIGTERM                                                               the keeper hears of it; the end after a while
the end of input without that: its parent was killed                  the end, if no other takes its place in a while
"""

from __future__ import annotations

import json
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

from heterps.checkpoint import RowFolder
from heterps.config import load_job
from heterps.launch.servers import run_server
from heterps.processes import give_answer, reserve_stdout, watch_input
from heterps.ps.protocol.roster import Roster
from heterps.ps.protocol.specs import plain_tables
from heterps.ps.server.server import Server
from heterps.temporary import delete_if_abandoned, wait_for_owner
from heterps.training.protocol.emulated_units import EmulatedServer


def main() -> None:
    answers = reserve_stdout()
    try:
        start = json.loads(sys.stdin.readline())
        job = load_job(start["job"])
        told = json.loads(sys.stdin.readline() or "{}")
        if "tables" not in told:  # the run has ended before it had a model
            return
        server = Server(
            start["name"],
            msgspec.convert(start["roster"], Roster),
            plain_tables(told["tables"]),
            mirrors=start["mirrors"],
            row_files=RowFolder(Path(start["job"]).parent),
        )
        folder, wait_s = Path(start["address"].removeprefix("ipc://")).parent, float(start["wait_s"])
        ended = watch_input(lambda: wait_for_owner(folder, wait_s))
        run_server(
            server,
            start["address"],
            keys=None,
            ready=lambda address: give_answer(answers, {"address": address}),
            servers=job.servers,
            seed=job.seed,
            ended=ended.is_set,
            emulated=msgspec.convert(start["can"], EmulatedServer) if start["can"] else None,
            grace_s=job.checkpoint.grace_s,
        )
        with suppress(OSError):  # its owner lives, and will do it
            delete_if_abandoned(folder)
    except Exception as error:  # told to the process that waits
        traceback.print_exc()
        give_answer(answers, {"kind": type(error).__name__, "error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
