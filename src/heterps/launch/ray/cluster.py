"""The Ray cluster of a run: found at an address, or started on this machine and gone afterwards.

    --address HOST:PORT, auto  -->  connect; its nodes have the labels that `ray start --resources` gave them
    no address                 -->  start: this machine is labelled with all resources of the job's cluster;
                                    a token that only this user can read admits to it, and its dashboard is off

Anyone who reaches a Ray cluster can run any code on all of its nodes, as the user that started it. That is what Ray is
for, so a cluster needs a token (RAY_AUTH_MODE=token), or a network that nobody else is in.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from heterps.errors import ConfigError, PeerLost
from heterps.launch.ray.nodes import held_own_node
from heterps.temporary import temporary_folder
from heterps.training.run.observer import Observer

OBJECT_STORE_BYTES = 80 << 20
"""Size of Ray's object store: about the smallest that Ray accepts, because nothing of ours travels through it."""
LONGEST_TEMPORARY = 30
"""Largest number of characters of a temporary folder with which paths of Ray's sockets are still allowed."""
TOLD_TO_STOP = 143
"""The exit code of a program that SIGTERM ends."""
NO_RAY = {
    True: " Is the machine too busy to start it? Try again",
    False: " Does the cluster run (`ray status` on this node), and does this process have its token (RAY_AUTH_MODE and "
    "RAY_AUTH_TOKEN_PATH)?",
}
"""Advice for errors: what to do when Ray cannot be started here, or cannot be reached."""
START_ATTEMPTS = 3
"""How often a Ray of our own is started: on a busy machine it may not be there within the time that it gives itself."""
KNOCK_S = 10.0
LOOPBACK = "127.0.0.1"
MEANING = "anybody who reaches a Ray cluster can run any code on its nodes"


class NoRay(PeerLost):
    """Ray cannot be reached or cannot be started."""


@dataclass(frozen=True)
class RayCluster:
    """What the launcher knows of the cluster that this process is connected to."""

    is_ours: bool  # started for this run
    driver: str  # Ray's address of the node that this process is on
    is_one_machine: bool

    @property
    def host(self) -> str:
        """The host name or address by which all nodes reach the sockets of this process."""
        return LOOPBACK if self.is_one_machine else self.driver


def import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("the launcher ray needs Ray, which is not installed: pip install 'ray>=2.55'") from None


@contextmanager
def open_ray(address: str | None, labels: Mapping[str, float], observer: Observer) -> Iterator[RayCluster]:
    """Connects to the cluster at `address`, or starts one here with these labels; disconnects or ends it afterwards.

    A program that is connected to Ray already keeps its connection, whatever the address.
    """
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"Ray address {address}: the coordinator is part of the job, so it runs on a node of the cluster, and not "
            "as a client from outside. Start it on a node, with --address auto"
        )
    ray = import_ray()
    if ray.is_initialized():
        with held_own_node():
            yield _look(ray, is_ours=False)
    elif address is not None:
        observer.waiting(f"connecting to the Ray cluster at {address}")
        _knock(address)
        _init(ray, address=address)
        try:
            if not _asks_for_token():
                observer.warned(f"{MEANING}, and this one asks for no token: see docs/how-to/ray.md")
            with held_own_node():
                yield _look(ray, is_ours=False)
        finally:
            ray.shutdown()
    else:
        observer.waiting(f"starting Ray on this machine, with a token: {MEANING}")
        with ExitStack() as opened:
            for attempt in range(START_ATTEMPTS):
                try:
                    opened.enter_context(_started(ray, labels))
                    break
                except NoRay as error:
                    if attempt == START_ATTEMPTS - 1:
                        raise
                    observer.warned(f"{error}. It is tried again")
            yield _look(ray, is_ours=True)


class KeptRay:
    """The Ray of a run, which outlives its restarts. Another is opened where that one is gone, or needs other labels.

    Use it in a `with` block, at whose end it is disconnected or ended.
    """

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._labels: dict[str, float] | None = None
        self._cluster: RayCluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def open(self, address: str | None, labels: Mapping[str, float], observer: Observer) -> RayCluster:
        """Return the cluster at `address`, or one that was started here with these labels."""
        if self._cluster is None or self._labels != dict(labels) or not _is_there():
            self._opened.close()
            self._cluster = None
            self._cluster = self._opened.enter_context(open_ray(address, labels, observer))
            self._labels = dict(labels)
        return self._cluster


def _is_there() -> bool:
    """Whether the Ray that this process is connected to still answers."""
    ray = import_ray()
    try:
        return any(node["Alive"] for node in ray.nodes())
    except Exception:  # whatever Ray raises: it is gone
        return False


@contextmanager
def _started(ray: Any, labels: Mapping[str, float]) -> Iterator[None]:
    root = "/tmp" if len(tempfile.gettempdir()) > LONGEST_TEMPORARY else None
    with (
        temporary_folder("ray-", root) as folder,
        _token(folder),
    ):
        try:
            _init(
                ray,
                address="local",  # not one that happens to run
                num_cpus=1,  # Ray starts as many processes ahead; ours ask for none, as those of launcher local
                resources={name: amount for name, amount in labels.items() if amount},
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=f"{folder}/ray",  # Ray lets everybody into its own folder, so it is inside one of ours
            )
            if not _asks_for_token():
                raise ConfigError("this version of Ray did not take the token: pip install 'ray>=2.55'")
            yield
        finally:
            ray.shutdown()


@contextmanager
def _token(folder: Path) -> Iterator[None]:
    """Makes a token for a Ray that is started inside, in a file that only this user can read."""
    path = folder / "token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path), "RAY_AUTH_TOKEN": None}
    before = {name: os.environ.get(name) for name in settings}
    _set(settings)
    try:
        yield
    finally:
        _set(before)  # before the file goes: threads of Ray that still end would miss it


def _set(settings: Mapping[str, str | None]) -> None:
    from ray._raylet import AuthenticationTokenLoader, Config

    for name, value in settings.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    Config.initialize("")  # Ray keeps what it once read of the environment
    AuthenticationTokenLoader.instance().reset_cache()


def _asks_for_token() -> bool:
    from ray._raylet import AuthenticationMode, get_authentication_mode

    return bool(get_authentication_mode() == AuthenticationMode.TOKEN)


def _knock(address: str) -> None:
    """Raises NoRay where nothing listens at HOST:PORT: Ray itself would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return  # auto: Ray knows where
    try:
        with socket.create_connection((host, int(port)), KNOCK_S):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise NoRay(f"Ray at {address}: nobody can be reached there: {error}.{NO_RAY[False]}") from None


def _init(ray: Any, **how: Any) -> None:
    """Calls ray.init without its output on our terminal. Meanwhile SIGTERM ends the program, as Ray decides."""
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", configure_logging=False, **how)
    except SystemExit:
        raise SystemExit(TOLD_TO_STOP) from None
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise NoRay(f"Ray at {how['address']}: {said[0]}{NO_RAY[how['address'] == 'local']}") from None


def _look(ray: Any, *, is_ours: bool) -> RayCluster:
    driver = str(ray.util.get_node_ip_address())
    hosts = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return RayCluster(is_ours, driver, hosts <= {driver})
