"""A socket at which Prometheus reads metrics, of whatever program opens it with `--metrics HOST:PORT`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from heterps.errors import ConfigError
from heterps.report.prometheus import CONTENT_TYPE
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
    def tell(self, exposition: Callable[[], bytes]) -> Iterator[None]:
        """Answer requests with the text that `exposition` returns, on threads of their own, while the context lasts."""
        is_local = is_loopback(self.opened.getsockname()[0])

        def metrics(request: Request) -> Response:
            if not comes_from_here(request.headers, is_local=is_local):
                return PlainTextResponse("Ask by the number of this machine, or as localhost.\n", 403)
            if not knows_token(request.scope, self.token):
                return ask_for_token()
            return Response(exposition(), media_type=CONTENT_TYPE)

        with self.opened, app_beside(Starlette(routes=[Route("/metrics", metrics)]), self.opened):
            yield


def open_metrics(where: str | None, token_file: Path | None) -> MetricsSocket | None:
    """Listen at HOST:PORT; None where nobody asks for it.

    Raises ConfigError where that is not to be had, and beyond loopback without a token.
    """
    if where is None:
        if token_file is not None:
            raise ConfigError("--token-file: the token is for --metrics; give where to tell them, as in 127.0.0.1:9100")
        return None
    host, colon, port = where.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise ConfigError(f"{OPTION} {where}: give HOST:PORT, as in 127.0.0.1:9100; port 0 takes a free one.")
    token = read_token(token_file)
    return MetricsSocket(listening(host.removeprefix("[").removesuffix("]"), int(port), token, OPTION), token)
