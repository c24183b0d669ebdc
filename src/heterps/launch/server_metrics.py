"""What a server tells Prometheus, over HTTP, while it serves.

    the server's loop, every second --> [figures as they are now] <-- a thread of its own, when Prometheus asks

The loop leaves figures between two messages, and nobody waits for a lock: a request for metrics, however slow, does not
hold a worker up. Figures of a server that is busy with one message become old, and say how old they are.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from heterps.errors import ConfigError
from heterps.ps.server.server import Server
from heterps.report.prometheus import CONTENT_TYPE
from heterps.report.prometheus_servers import ServerFacts, exposition
from heterps.serving.listen import (
    app_beside,
    ask_for_token,
    comes_from_here,
    is_loopback,
    knows_token,
    listening,
    read_token,
    url_of,
)

OPTION = "--metrics"


@dataclass(frozen=True)
class MetricsSocket:
    """A socket that listens for Prometheus. `token` is what it must send; None: everyone on this machine may ask."""

    opened: socket.socket
    token: str | None

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return f"{url_of(self.opened)}/metrics"

    @contextmanager
    def tell(self, server: Server) -> Iterator[Callable[[], None]]:
        """Answer requests on a thread; gives what the server's loop is to call between two messages."""
        figures = _Figures(server)

        is_local = is_loopback(self.opened.getsockname()[0])

        def metrics(request: Request) -> Response:
            if not comes_from_here(request.headers, is_local=is_local):
                return PlainTextResponse("Ask by the number of this machine, or as localhost.\n", 403)
            if not knows_token(request.scope, self.token):
                return ask_for_token()
            return Response(exposition(figures.facts()), media_type=CONTENT_TYPE)

        with self.opened, app_beside(Starlette(routes=[Route("/metrics", metrics)]), self.opened):
            yield figures.note


def open_metrics(where: str, token_file: Path | None) -> MetricsSocket:
    """Listen at HOST:PORT. Raises ConfigError where that is not to be had, and beyond loopback without a token."""
    host, colon, port = where.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise ConfigError(f"{OPTION} {where}: give HOST:PORT, as in 127.0.0.1:9100; port 0 takes a free one.")
    token = read_token(token_file)
    return MetricsSocket(listening(host.removeprefix("[").removesuffix("]"), int(port), token, OPTION), token)


class _Figures:
    """What is known of a server: written by its own thread, read by others."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._folders = {spec.name: spec.tiers.folder for spec in server.tables.sparse if spec.tiers is not None}
        self._began_at = time.monotonic()
        self.note()

    def note(self) -> None:
        """Note the figures of the server as they are now. To be called by its own thread."""
        latency, now = self._server.counts.latency, time.monotonic()
        facts = ServerFacts(self._server.stats(), latency.octaves(), latency.total_s, now - self._began_at, 0.0, {})
        self._noted = facts, now  # at once, so that no reader sees one of the two alone

    def facts(self) -> ServerFacts:
        """Return the figures that were noted last, and what can be seen without the server."""
        facts, at = self._noted
        age_s = time.monotonic() - at
        free_bytes = {}
        for table, folder in self._folders.items():
            with suppress(OSError):
                free_bytes[table] = shutil.disk_usage(folder).free
        return replace(facts, up_s=facts.up_s + age_s, turn_age_s=age_s, free_bytes=free_bytes)
