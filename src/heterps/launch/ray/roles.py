"""The roles of a job as they run inside Ray actors: a worker, a server.

    driver                                  actor, with two threads
    place.remote()                     -->  which node, which process
    run.remote(start)                  -->  work until told to stop; a call that lasts as long as the role
    stop.remote()                      -->  run ends in peace

A `start` is plain values: the job as YAML, names, addresses, keys. Messages go over our own sockets: Ray places actors
and tells when one is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from heterps import __version__
from heterps.checkpoint import RowFolder
from heterps.config import Job, Servers, parse_job
from heterps.errors import ConfigError
from heterps.launch.servers import warm_up_server
from heterps.launch.socket_worker import work
from heterps.ps.protocol.roster import Roster
from heterps.ps.server.serve import serve
from heterps.ps.server.server import Server
from heterps.training.protocol.emulated_units import EmulatedServer
from heterps.training.protocol.pacing import ServerPace
from heterps.training.protocol.stage_tables import job_tables
from heterps.training.worker.worker import WorkerStart
from heterps.wire import ServerChannel
from heterps.wire.address import is_loopback
from heterps.wire.keys import Keys
from heterps.wire.stack import layered


class Role:
    def __init__(self) -> None:
        self._stopped = threading.Event()

    def place(self) -> dict[str, Any]:
        """Where this actor runs."""
        import ray

        return {"node": ray.get_runtime_context().get_node_id(), "host": _own_host(), "pid": os.getpid()}

    def stop(self) -> None:
        self._stopped.set()


class WorkerRole(Role):
    def run(self, start: dict[str, Any]) -> None:
        job = _enter(start)
        work(
            job,
            msgspec.convert(start["worker"], WorkerStart),
            address=listen_address(_listening_host(start)),
            coordinator=start["coordinator"],
            servers=msgspec.convert(start["servers"], Roster),
            stopped=self._stopped.is_set,
            keys=Keys(**start["keys"]),
            server_keys=Keys(**start["server_keys"]) if start["server_keys"] else None,
            client=start["client"],
            incarnation=start["incarnation"],
        )


class ServerRole(Role):
    """One parameter server. Call `listen` on all, then `prepare`, then `run`: the roster has every server's address."""

    def listen(self, start: dict[str, Any]) -> str:
        """Opens the server's socket and returns its address."""
        self._start, self._job = start, _enter(start)
        address = listen_address(_listening_host(start))
        self._socket = ServerChannel(start["name"], address, keys=Keys(**start["keys"]))
        return self._socket.address

    def prepare(self, roster: dict[str, Any], mirrors: int | None) -> None:
        """Makes the tables, as the mirror of server `mirrors` if not None. Requests that come meanwhile wait."""
        self._server = Server(
            self._start["name"],
            msgspec.convert(roster, Roster),
            job_tables(self._job, self._start["firsts"]),
            mirrors=mirrors,
            row_files=RowFolder(Path(self._start["run"])),
        )
        warm_up_server(self._server)

    def run(self) -> None:
        can = msgspec.convert(self._start["emulated"], EmulatedServer | None)
        faults = (self._job.servers or Servers()).faults
        channel = layered(self._socket, faults, self._job.seed, can.port if can else None)
        try:
            pace = ServerPace(can) if can else None
            serve(self._server, channel, self._stopped.is_set, pace=pace, reach=self._socket.reach)
        finally:
            channel.close()


def listen_address(host: str) -> str:
    """An address with any free port of `host`."""
    return f"tcp://[{host}]:*" if ":" in host else f"tcp://{host}:*"


def _enter(start: dict[str, Any]) -> Job:
    """Makes this process like the driver: the same folder, modules and job. Raises where the versions differ."""
    if start["version"] != __version__:
        raise ConfigError(
            f"node {_own_host()} has heterps {__version__}, and the job was started by {start['version']}: "
            "install the same version on all nodes"
        )
    if Path(start["folder"]).is_dir():
        os.chdir(start["folder"])  # relative paths of a job are taken from there
    sys.path.extend(path for path in start["path"] if path not in sys.path and Path(path).is_dir())
    return parse_job(start["job"], where=f"the job of {start['name']}")


def _listening_host(start: dict[str, Any]) -> str:
    """Loopback where the whole job is on one machine, else the address by which other nodes reach this one."""
    own = _own_host()
    if not is_loopback(start["host"]):
        return own
    if own != start["driver"]:
        raise ConfigError(
            f"{start['name']} was placed on node {own}, which joined after the job began on {start['driver']} alone: "
            "its sockets are reached from there only. Stop the job, and --resume it on the larger cluster"
        )
    return str(start["host"])


def _own_host() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
