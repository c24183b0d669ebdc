"""Addresses at which a server may listen: ipc in a private folder, or tcp with keys.

Every user of a machine can connect to its loopback addresses, so a key is needed there too. A socket in the file system
is protected by its folder: users who can write to the folder could replace the socket by their own.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from heterps.errors import ConfigError, StorageError
from heterps.temporary import temporary_folder
from heterps.wire.keys import Keys

LONGEST_PATH_BYTES = 107
"""Longest path of a socket file on Linux; the system cuts or refuses longer ones with an unclear error."""

LONGEST_NAME_BYTES = 16
"""Longest file name of a socket that a run creates, such as worker-12.1024."""


def check_address(address: str, keys: Keys | None = None, *, open_loopback: bool = False) -> str:
    """Return `address` if it is ipc://PATH, or tcp://HOST:PORT with `keys`; else raise ConfigError.

    open_loopback  allow tcp on loopback without keys, for tests and benchmarks
    """
    if address.startswith("ipc://"):
        path = address.removeprefix("ipc://")
        if not path.startswith(("/", "./")) or len(path.encode()) > LONGEST_PATH_BYTES:
            raise ConfigError(
                f"address {address}: an ipc address is ipc://PATH with a path of at most {LONGEST_PATH_BYTES} bytes "
                "that begins with / or ./: choose a shorter folder, such as one in /tmp"
            )
        return address
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]:/]+):(\d{1,5}|\*)", address)
    if match is None or (match[2] != "*" and not 0 <= int(match[2]) <= 65535):
        raise ConfigError(f"address {address!r}: write ipc://PATH or tcp://HOST:PORT, as in tcp://127.0.0.1:5555")
    is_near = is_loopback(match[1].strip("[]"))
    if keys is None and not (is_near and open_loopback):
        whence = "by every user of this machine" if is_near else "from other machines"
        raise ConfigError(
            f"address {address} can be reached {whence}, and no key protects it: make one with "
            "`heterps keys create DIR` and give its file to every process of the job, or use ipc://"
        )
    return address


def check_folder(address: str, keys: Keys | None) -> None:
    """Raise ConfigError if there are no `keys` and another user could replace the socket at this ipc address."""
    if keys is not None or not address.startswith("ipc://"):
        return
    folder = Path(address.removeprefix("ipc://")).parent
    try:
        status = folder.stat()
    except OSError:
        return  # there can be no socket either
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"address {address}: other users can write to {folder}, and no key protects the socket: use a folder of "
            "your own (`mkdir -m 700 DIR`), or make a key with `heterps keys create DIR`"
        )


def is_loopback(host: str) -> bool:
    """Tell whether `host` is a loopback address or localhost. Other names may resolve to anything, so they are not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(address: str) -> bool:
    """Tell whether both ends of a connection to this address are on one machine."""
    return address.startswith("ipc://") or is_loopback(address.removeprefix("tcp://").rpartition(":")[0].strip("[]"))


def refuse_if_served(address: str) -> None:
    """Raise ConfigError if a process listens at this ipc address: binding would silently take it from that process."""
    if address.startswith("ipc://") and is_served(address):
        raise ConfigError(f"address {address}: another process listens there: stop it, or choose another path")


def is_served(address: str) -> bool:
    """Tell whether a process listens at this ipc address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(address.removeprefix("ipc://")) == 0


def server_process(address: str) -> int | None:
    """Return the process that listens at this ipc address; None where none does, or where that cannot be told."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(address.removeprefix("ipc://")):
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


@contextmanager
def socket_folder() -> Iterator[Path]:
    """Create a folder for sockets that only this user may enter, and delete it when the context ends."""
    with ExitStack() as opened:
        try:
            folder = opened.enter_context(temporary_folder())
        except OSError as error:
            raise StorageError(
                f"no folder for the sockets of the run's processes can be made: {error}. Set TMPDIR to a folder that "
                "you may write to"
            ) from error
        if len(os.fsencode(folder)) + 1 + LONGEST_NAME_BYTES > LONGEST_PATH_BYTES:
            raise ConfigError(
                f"the run's processes meet at sockets in {folder}, and the path of a socket may have at most "
                f"{LONGEST_PATH_BYTES} bytes. Set TMPDIR to a shorter folder, such as /tmp"
            )
        yield folder
