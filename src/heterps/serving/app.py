"""The HTTP application that scores rows. See docs/how-to/serve.md.

    POST /score     rows in, scores out, as JSON or as an Arrow stream      payload.py
                    requests are joined into batches                        batching.py
    GET  /health    whether it is ready, its version, what it follows       200, or 503 while it stops
    GET  /metrics   figures for Prometheus                                  serve_metrics.py
    GET  /model     columns, outputs and version of the model

Every answer that is not a score, a metric or a description is {"error": TEXT}. A status of 4xx is the sender's to mend,
503 means to come again later, 500 is a fault of ours, which is logged with its traceback and told without.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heterps.serving.batching import Batcher, QueueFull, TooLate
from heterps.serving.listen import ask_for_token, knows_token
from heterps.serving.payload import (
    ARROW,
    JSON,
    MAX_ROWS,
    UNKNOWN_HEADER,
    VERSION_HEADER,
    Columns,
    RequestRefused,
    Shape,
    read_arrow,
    read_json,
    write_arrow,
    write_json,
)
from heterps.serving.scoring import ScoredRequest
from heterps.serving.serve_metrics import CONTENT_TYPE, ServeMetrics

PATHS = ("/score", "/health", "/metrics", "/model")
LARGE_BYTES = 65_536
"""A body from this size on is read on a thread, so that other requests need not wait for it."""
MB = 2**20
RETRY_S = 1


@dataclass(frozen=True)
class Service:
    """What the application answers from.

    describe     the model in use, as GET /model shows it
    health       what GET /health shows beside `ready`
    max_body_mb  size of the largest body in MiB
    max_rows     number of rows that a request may have
    deadline_s   seconds from the head of a request to its answer, at most
    token        what senders must know; None: everyone may ask
    """

    columns: Columns
    batcher: Batcher[Any, ScoredRequest]
    metrics: ServeMetrics
    describe: Callable[[], dict[str, Any]]
    health: Callable[[], dict[str, Any]]
    max_body_mb: float = 16.0
    max_rows: int = MAX_ROWS
    deadline_s: float = 10.0
    token: str | None = None


def make_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a service."""

    async def score(request: Request) -> Response:
        return await _score(service, request)

    async def health(_: Request) -> Response:
        ready = not service.batcher.is_closed
        return _json({"ready": ready, **service.health()}, 200 if ready else 503)

    async def metrics(_: Request) -> Response:
        return Response(service.metrics.text(service.batcher.num_waiting), media_type=CONTENT_TYPE)

    async def model(_: Request) -> Response:
        return _json(service.describe())

    app = Starlette(
        routes=[
            Route("/score", score, methods=["POST"]),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/model", model),
        ],
        exception_handlers={RequestRefused: _refused, HTTPException: _not_found, Exception: _our_fault},
    )
    app.router.redirect_slashes = False
    return _Gate(app, service)


class _Gate:
    """Counts every request with its status and its time, and lets nobody pass who does not know the token."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._metrics, self._token = app, service.metrics, service.token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, code = time.perf_counter(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            answer = self._app if knows_token(scope, self._token) else ask_for_token()
            await answer(scope, receive, send_and_note)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self._metrics.request(path, code, time.perf_counter() - begin)


# --- POST /score -----------------------------------------------------------------------------------------------------


async def _score(service: Service, request: Request) -> Response:
    deadline_s = time.monotonic() + service.deadline_s
    if service.batcher.is_full:  # before its body takes memory
        raise _busy("As many requests wait as may wait.")
    sent = _sent_kind(request)
    wanted = _wanted_kind(request, sent)
    body = await _body(request, int(service.max_body_mb * MB), deadline_s)

    def read() -> tuple[Any, Shape]:
        if sent == JSON:
            return read_json(body, service.columns, service.max_rows)
        return read_arrow(body, service.columns, int(service.max_body_mb * MB), service.max_rows), "columns"

    is_large = len(body) >= LARGE_BYTES
    table, shape = await asyncio.to_thread(read) if is_large else read()
    try:
        answer = service.batcher.submit(table, table.num_rows, deadline_s)
        async with asyncio.timeout(deadline_s - time.monotonic()):
            scored = await asyncio.wrap_future(answer)
    except QueueFull as error:
        raise _busy(f"There is no room for this request: {error}.") from None
    except (TooLate, TimeoutError):
        raise _busy(f"No answer within {service.deadline_s:g} s.") from None

    def write() -> bytes:
        told = scored.version, scored.num_unknown
        return write_json(scored.scores, *told, shape) if wanted == JSON else write_arrow(scored.scores, *told)

    headers = {VERSION_HEADER: scored.version, UNKNOWN_HEADER: str(scored.num_unknown)}
    return Response(await asyncio.to_thread(write) if is_large else write(), media_type=wanted, headers=headers)


def _busy(text: str) -> RequestRefused:
    return RequestRefused(503, f"{text} Come again in a moment.", {"Retry-After": str(RETRY_S)})


def _sent_kind(request: Request) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, ARROW):
        raise RequestRefused(415, f"Send the header Content-Type: {JSON} or {ARROW}, not {kind or 'none'}.")
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        raise RequestRefused(415, f"Send the body as it is: Content-Encoding {coding!r} is not known here.")
    return kind


def _wanted_kind(request: Request, sent: str) -> str:
    """Return the kind of answer that is asked for; where any is welcome, the kind of the request."""
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "*/*").split(",")]
    for kind in accepted:
        if kind in (JSON, ARROW):
            return kind
        if kind in ("*/*", "application/*", ""):
            return sent
    raise RequestRefused(406, f"Scores are written as {JSON} or {ARROW}: name one of them in the header Accept.")


async def _body(request: Request, max_bytes: int, deadline_s: float) -> bytes:
    """Read the body. It is refused as soon as it is too large, whatever its head says, and when it does not come."""
    too_large = RequestRefused(
        413, f"The body is larger than {max_bytes:,} bytes. Send fewer rows at once.", {"Connection": "close"}
    )
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    parts, num_bytes = [], 0
    try:
        async with asyncio.timeout(deadline_s - time.monotonic()):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > max_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise RequestRefused(408, "The body did not come in time.", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise RequestRefused(400, "The sender hung up before the body was complete.") from None
    return b"".join(parts)


# --- answers that are no scores --------------------------------------------------------------------------------------


def _json(content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content) + "\n", status, headers, JSON)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    return _json({"error": str(error)}, error.status, error.headers)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    paths = "POST /score, GET /health, GET /metrics, GET /model"
    if error.status_code == 404:
        text = f"There is nothing at this path. There is: {paths}."
    elif error.status_code == 405:
        text = f"This path does not take {request.method}. There is: {paths}."
    else:
        text = error.detail
    return _json({"error": text}, error.status_code, dict(error.headers or {}))


async def _our_fault(_: Request, __: Exception) -> Response:
    return _json({"error": "The server failed on this request, by a fault of its own. Its log says more."}, 500)
