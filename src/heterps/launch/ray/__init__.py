"""The Ray launcher: the workers and servers of a plan as actors, wherever a Ray cluster has units of their resources.

    this process: coordinator              Ray: places actors by labels, and tells when one is gone
      | tcp, keys of this run
    [worker-1.0 on cpu] --tcp--> [worker-2.0 on v100]      actors; what they say to each other is not Ray's business
              [server-0 on cpu]

[1] find or start the cluster   [2] reserve a bundle for every role, all or none   [3] servers, workers, training
[4] stop the actors, give the reservations back; at the end of the run end Ray, if it was started here

cluster        finds or starts Ray                 nodes          which nodes there are, and which leave
placement      what a role takes of a cluster      reservations   places for all roles, or none
roles, actor   a role inside an actor, and as its driver sees it
fleet          the workers                         servers        the servers and their mirrors
leaving        workers make room on nodes that are drained

Read first: this file, then fleet.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from heterps import __version__
from heterps.config import Job, Servers
from heterps.errors import ConfigError, PeerLost
from heterps.launch.inline import signals, warm_up
from heterps.launch.ray.cluster import TOLD_TO_STOP, KeptRay, RayCluster
from heterps.launch.ray.fleet import RayFleet
from heterps.launch.ray.leaving import LeavingNodes
from heterps.launch.ray.placement import Bundle, bundle_of, check_labels
from heterps.launch.ray.reservations import PLACE_S, Reservations
from heterps.launch.ray.roles import listen_address
from heterps.launch.ray.servers import ray_servers
from heterps.launch.run_servers import run_servers
from heterps.planning.plan import Plan
from heterps.report.figures import plural
from heterps.temporary import temporary_folder
from heterps.training.coordinator.failures import PeerDied
from heterps.training.coordinator.fleet import Fleet, WorkerLost
from heterps.training.coordinator.starts import Emulated
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer
from heterps.training.worker.worker import COORDINATOR
from heterps.wire import ServerChannel
from heterps.wire.keys import Keys, load_keys, make_keys
from heterps.wire.stack import resending
from heterps.yamlfile import dump_yaml

DEAD_S = 10.0
"""Seconds to wait until Ray notices a death that the coordinator met first."""


@contextmanager
def ray_fleet(
    job: Job,
    run: Run,
    plan: Plan,
    *,
    observer: Observer,
    emulated: Emulated | None,
    received: list[str],
    kept: KeptRay | None = None,
) -> Iterator[tuple[Fleet, str]]:
    """Servers and workers for `plan` on a Ray cluster and a folder for them; all are removed at the end.

    received  gets the names of the signals that come
    kept      the Ray of the run, which stays open; None: it is this call's own
    """
    _check(job)
    num_servers = _num_servers(job, plan)
    mirrors = [plan.servers.resource] * num_servers * (job.servers or Servers()).replicas
    roles = [plan.servers.resource] * num_servers + [s.resource for s in plan.stages for _ in range(s.count)]
    with ExitStack() as opened:
        kept = kept or opened.enter_context(KeptRay())
        cluster = kept.open(job.ray_address, _labels(job, roles + mirrors), observer)  # [1]
        opened.enter_context(signals(received))  # after Ray has set its own
        _leave_if(received)
        warm_up()
        if job.workers.dense == "all_reduce" and not cluster.is_one_machine:
            raise ConfigError(
                "workers.dense: all_reduce is for workers on one machine, and this Ray cluster has several: use servers"
            )
        reservations = Reservations(_bundles(job, roles, cluster, emulated))
        opened.callback(reservations.close)
        observer.waiting(f"waiting for places on the Ray cluster: {_counted(roles + mirrors)}")
        reservations.reserve(roles, PLACE_S, lambda: _leave_if(received))  # [2]
        fleet, folder = _open_fleet(
            job, run, plan, num_servers, cluster, reservations, observer, emulated, received, opened
        )  # [3]
        try:
            yield fleet, folder
        except PeerLost as error:
            if isinstance(error, PeerDied) and not isinstance(error, WorkerLost):
                raise  # a server: no worker explains more
            how = fleet.dead(DEAD_S)
            if how is None or str(how) in str(error):
                raise
            raise PeerLost(f"{error}. {how}") from error


def _leave_if(received: list[str]) -> None:
    """Leaves when a signal has come before training began: there is nothing to save."""
    if "SIGINT" in received:
        raise KeyboardInterrupt
    if received:
        raise SystemExit(TOLD_TO_STOP)


def _check(job: Job) -> None:
    check_labels(job.cluster.resources)
    servers = job.servers or Servers()
    if job.workers.channel == "memory" or servers.channel == "memory":
        raise ConfigError(
            "workers and servers in the memory of this process (channel: memory) cannot be on a Ray cluster: leave "
            "channel out, or use launcher local"
        )
    if unreachable := [address for address in servers.addresses if address.startswith("ipc://")]:
        raise ConfigError(
            f"servers.addresses: {unreachable[0]} is reached from this machine only: start the servers at tcp addresses"
        )


def _num_servers(job: Job, plan: Plan) -> int:
    """The number of servers that are started for the run."""
    servers = job.servers or Servers()
    return 0 if servers.addresses else servers.count or plan.servers.count or 1


def _bundles(job: Job, roles: list[str], cluster: RayCluster, emulated: Emulated | None) -> dict[str, Bundle]:
    """The Ray bundle of one unit of each resource. On this machine alone, units share its cores."""
    devices = {name: "cpu" if emulated else job.cluster.resources[name].device for name in roles}
    return {name: bundle_of(name, device, num_cores=int(not cluster.is_ours)) for name, device in devices.items()}


def _labels(job: Job, roles: list[str]) -> dict[str, float]:
    """Labels for a Ray that is started on this machine: as many units of each resource as the job may ever use."""
    return {
        name: float(max(resource.limit, roles.count(name)))
        for name, resource in job.cluster.resources.items()
        if resource.limit or name in roles
    }


def _counted(roles: list[str]) -> str:
    return ", ".join(f"{roles.count(name)} {name}" for name in dict.fromkeys(roles))


def _open_fleet(
    job: Job,
    run: Run,
    plan: Plan,
    num_servers: int,
    cluster: RayCluster,
    reservations: Reservations,
    observer: Observer,
    emulated: Emulated | None,
    received: list[str],
    opened: ExitStack,
) -> tuple[RayFleet, str]:
    """Starts the servers and the coordinator's socket, with keys that only this run's processes have."""
    keys = make_keys()
    socket = ServerChannel(COORDINATOR, listen_address(cluster.host), keys=keys)
    channel = resending(socket)  # the core says who is silent for too long
    opened.callback(channel.close)
    folder = str(opened.enter_context(temporary_folder()))
    start: dict[str, Any] = {
        "version": __version__,
        "job": dump_yaml(job),
        "folder": os.getcwd(),
        "path": [os.path.abspath(path) for path in sys.path],
        "run": str(run.folder.resolve()),
        "host": cluster.host,
        "driver": cluster.driver,
        "coordinator": socket.address,
        "keys": _as_dict(keys),
        "server_keys": _as_dict(keys),
        "firsts": [stage.first for stage in plan.stages],
        "emulated": [
            msgspec.to_builtins(emulated.server(number)) if emulated and emulated.server else None
            for number in range(num_servers)
        ],
    }
    nodes = LeavingNodes()
    if num_servers:
        observer.waiting(f"starting {plural(num_servers, 'server')}")
        replicas, resource = (job.servers or Servers()).replicas, plan.servers.resource
        starting = ray_servers(job, num_servers, resource, start, reservations, observer, nodes, replicas=replicas)
    else:
        key = job.servers.key if job.servers is not None else None
        start["server_keys"] = _as_dict(load_keys(key)) if key is not None else None
        starting = run_servers(job, run.folder / "job.yaml", observer.waiting)
    servers = opened.enter_context(starting)
    observer.waiting(f"starting {plural(sum(stage.count for stage in plan.stages), 'worker')}")
    resources = [stage.resource for stage in plan.stages]
    fleet = RayFleet(
        channel, resources, start, reservations, servers, observer, nodes, received, is_shared=not num_servers
    )
    opened.callback(fleet.close)
    return fleet, folder


def _as_dict(keys: Keys) -> dict[str, str]:
    return {"public": keys.public, "secret": keys.secret}
