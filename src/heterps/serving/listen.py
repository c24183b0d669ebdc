"""The process around the application: its socket, its token, and an orderly end.

SIGTERM, Ctrl-C   no new connections; requests under way are answered; then it ends
a second Ctrl-C   it ends at once
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Scope

from heterps.errors import ConfigError

TOKEN_VARIABLE = "HETERPS_TOKEN"
LEAST_CHARACTERS = 16
MOST_BYTES = 4096
BACKLOG = 1024
STOP_S = 5.0
"""Seconds after which an application beside other work is given up: its thread ends with the process."""


def read_token(file: Path | None) -> str | None:
    """Return the token of `file`, or of the environment; None if neither has one. Raises ConfigError if it is unfit."""
    if file is None:
        token, where = os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE
        if not token:
            return None
    else:
        where = str(file)
        try:
            with file.open("rb") as opened:
                mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
                token = opened.read(MOST_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            raise ConfigError(f"{file}: the token cannot be read: {error.strerror}. Write it there first.") from None
        if mode & 0o077:
            raise ConfigError(f"{file} has mode {mode:04o}, so other users can read the token: chmod 600 {file}.")
    if len(token) < LEAST_CHARACTERS or not token.isprintable() or not token.isascii() or " " in token:
        raise ConfigError(
            f"{where}: a token is at least {LEAST_CHARACTERS} letters, digits and signs without spaces. Make one with "
            "`openssl rand -hex 32`."
        )
    return token


def listening(host: str, port: int, token: str | None, option: str = "--host") -> socket.socket:
    """Return a socket that listens at `host` and `port`, which `option` named; port 0 takes a free one.

    Raises ConfigError where the port is not to be had, and beyond loopback without a token.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{option} {host}: no such address here: {error}.") from None
    family, kind, protocol, _, address = found[0]
    if token is None and not all(is_loopback(str(each[4][0])) for each in found):
        raise ConfigError(
            f"{option} {host}: others than this machine could ask there, so a token is needed. Give it in a file with "
            f"--token-file, or in the environment variable {TOKEN_VARIABLE}; or listen at 127.0.0.1."
        )
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        raise ConfigError(
            f"cannot listen at {host} port {port}: {error.strerror or error}. Name another port with "
            f"{'--port' if option == '--host' else option}; 0 takes a free one."
        ) from None
    return opened


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def comes_from_here(headers: Mapping[str, str], *, is_local: bool) -> bool:
    """Whether a request comes from no page of another host, and not under a name that leads here by a trick of DNS.

    Where one `is_local`, on loopback, this machine has no other names than its numbers and localhost.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    is_known = not is_local or _is_number_or_localhost(host)
    return is_known and (origin is None or urlsplit(origin).netloc == host)


def _is_number_or_localhost(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def url_of(opened: socket.socket) -> str:
    """Return the address of a socket as a URL."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def knows_token(scope: Scope, token: str | None) -> bool:
    """Whether a request has the header `Authorization: Bearer TOKEN`; without a token everyone may ask."""
    if token is None:
        return True
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    kind, _, told = given.partition(b" ")
    return hmac.compare_digest(told.strip(), token.encode()) and kind.lower() == b"bearer"


def ask_for_token() -> Response:
    """Return the answer to a request that does not have the token."""
    text = "Send the token of this server in the header Authorization: Bearer TOKEN."
    return JSONResponse({"error": text}, 401, {"WWW-Authenticate": "Bearer"})


@contextmanager
def app_beside(app: ASGIApp, opened: socket.socket) -> Iterator[None]:
    """Serve on a thread of its own while the context is open; the thread that opened it takes care of signals."""
    server = uvicorn.Server(_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(STOP_S)


def run_app(
    app: ASGIApp,
    opened: socket.socket,
    ready: Callable[[], None],
    stop_s: float,
    max_connections: int | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, and return its number. Requests under way have `stop_s` to be answered.

    ready            is called once requests are taken
    max_connections  while there are as many, every request is refused with 503; None: there is no limit
    """
    server = _Server(_config(app, stop_s, max_connections))
    server.ready = ready
    server.run(sockets=[opened])
    return server.received


def _config(app: ASGIApp, stop_s: float = 1.0, max_connections: int | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        log_level="error",
        access_log=False,
        timeout_keep_alive=30,
        lifespan="off",
        server_header=False,
        limit_concurrency=max_connections,
        timeout_graceful_shutdown=max(1, round(stop_s)),
    )


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it is ready, and gives the signal that ended it instead of raising it anew."""

    received = 0
    ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def note(number: int, _: FrameType | None) -> None:
            self.force_exit = self.should_exit and number == signal.SIGINT
            self.should_exit = True
            self.received = self.received or number

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
