"""Where a server listens: ipc on this machine, tcp on loopback, or beyond it with keys only."""

from __future__ import annotations

import ipaddress
import re
import socket

from heterps.errors import ConfigError
from heterps.wire.keys import Keys

LONGEST_PATH_BYTES = 107
"""What a socket's path may take on Linux; longer ones are cut, or refused with an error that does not say so."""


def check_address(address: str, keys: Keys | None = None) -> str:
    """`address` if it may be used: ipc://PATH, or tcp://HOST:PORT, where a host beyond loopback needs `keys`."""
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
    if keys is None and not is_loopback(match[1].strip("[]")):
        raise ConfigError(
            f"address {address} can be reached from other machines, and no key protects it: make one with "
            "`heterps keys create DIR` and give its file to every process of the job, or use tcp://127.0.0.1 or ipc://"
        )
    return address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. Names other than localhost may resolve to anything, so they do not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(address: str) -> bool:
    """Whether both ends of a connection to this address are on one machine."""
    return address.startswith("ipc://") or is_loopback(address.removeprefix("tcp://").rpartition(":")[0].strip("[]"))


def refuse_if_served(address: str) -> None:
    """ConfigError if a process listens at this ipc address: binding would silently take it away from that process."""
    if not address.startswith("ipc://"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(address.removeprefix("ipc://")) == 0:
            raise ConfigError(f"address {address}: another process listens there: stop it, or choose another path")
