"""The HTTP application of `heterps ui`."""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heterps.config import Job, load_job
from heterps.errors import HeterpsError
from heterps.launch.run_metrics import run_facts
from heterps.report.page.runs import render_comparison, render_list, render_watched
from heterps.report.page.templates import asset
from heterps.report.page.what_if import render_what_if
from heterps.report.prometheus import CONTENT_TYPE, exposition
from heterps.report.read_run import RecordedRun, read_run
from heterps.serving.listen import comes_from_here
from heterps.training.run.folder import PROFILE
from heterps.ui.actions import ACTIONS
from heterps.ui.runs import RunList, is_running
from heterps.ui.watch import Watched
from heterps.ui.what_if import Basis, frontier_part, next_part, plan_part, read_basis, searches_part

MOST_COMPARED = 8
MOST_BODY = 65_536
HELD_S = 0.5
"""Longest time that a page waits for what has changed; a job that is busy is asked about at the next time."""
LISTEN_S = 0.1
"""Seconds between two looks whether somebody still waits for an answer that takes long."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def make_app(folder: Path, token: str, *, is_local: bool = True) -> ASGIApp:
    """Return the application over the runs in `folder`.

    Where it `is_local`, on loopback, it answers to no other name of this machine than its numbers and localhost.
    """
    pages = _Pages(folder)
    app = Starlette(
        routes=[
            Route("/", pages.list),
            Route("/compare", pages.compare),
            Route("/metrics", pages.metrics),
            Route("/style.css", pages.style),
            Route("/ui.js", pages.script),
            Route("/run/{name}", _to_page),
            Route("/run/{name}/", pages.run),
            Route("/run/{name}/events", pages.events),
            Route("/run/{name}/what-if", pages.what_if),
            Route("/run/{name}/what-if/plan", pages.what_if_plan),
            Route("/run/{name}/what-if/next", pages.what_if_next),
            Route("/run/{name}/what-if/frontier", pages.what_if_frontier),
            Route("/run/{name}/what-if/searches", pages.what_if_searches),
            Route("/run/{name}/{action}", pages.act, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refused, HeterpsError: _said},
    )
    app.router.redirect_slashes = False
    return _Gate(app, token, is_local)


class _Gate:
    """Lets nobody pass whose address does not begin with the token, and gives every answer its headers.

    Nobody passes either who comes from a page of another host, or under a name that leads here by a trick of DNS.
    """

    def __init__(self, app: ASGIApp, token: str, is_local: bool) -> None:
        self._app, self._token, self._is_local = app, token.encode(), is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given, _, rest = scope["path"].removeprefix("/").partition("/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                added = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in known]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        is_from_here = comes_from_here(Headers(scope=scope), is_local=self._is_local)
        if hmac.compare_digest(given.encode(), self._token) and is_from_here:
            inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": ""}
            await self._app(inner, receive, send_with_headers)
        else:
            text = "Open the address that `heterps ui` printed: it has a token, and this one has not.\n"
            await PlainTextResponse(text, 403)(scope, receive, send_with_headers)


class _Pages:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = RunList(folder)
        self._watched: dict[str, Watched] = {}
        self._refreshing: dict[str, asyncio.Task[None]] = {}

    async def list(self, request: Request) -> Response:
        search = request.query_params.get("q", "")
        lines = await asyncio.to_thread(self._runs.lines, search)
        return HTMLResponse(render_list(str(self._folder), lines, search))

    async def run(self, request: Request) -> Response:
        watched = await self._find(request)
        look = await asyncio.to_thread(watched.look)
        job = _job(watched.folder)
        has_profile = (watched.folder / PROFILE).is_file()
        page = render_watched(
            watched.name, look.html, look.digest, look.status, job, is_running=look.is_running, has_profile=has_profile
        )
        return HTMLResponse(page)

    async def events(self, request: Request) -> Response:
        """What has changed since the event that the page saw last. The page asks again a second later.

        No answer stays open: a browser has six connections to a host for all its windows, and one more page that held
        one would leave none to a click.
        """
        watched = await self._find(request)
        refreshing = self._refreshing.get(watched.name)
        if refreshing is None or refreshing.done():  # one thread looks, however many pages ask
            refreshing = self._refreshing[watched.name] = asyncio.create_task(asyncio.to_thread(watched.refresh))
        if (await asyncio.wait({refreshing}, timeout=HELD_S))[0]:
            refreshing.result()
        seen = request.headers.get("last-event-id", request.query_params.get("seen", ""))
        return Response(watched.news(seen), media_type="text/event-stream")

    async def act(self, request: Request) -> Response:
        watched = await self._find(request)
        action = ACTIONS.get(request.path_params["action"])
        if action is None:
            raise HTTPException(404, "There is no such action.")
        asked = await _asked(request)
        told = await asyncio.to_thread(action, watched.folder, asked)
        return JSONResponse({"answer": told})

    async def what_if(self, request: Request) -> Response:
        """The page without a plan, which its script asks for; a form that is sent without a script gets one at once."""
        watched, asked = await self._find(request), dict(request.query_params)
        basis = await asyncio.to_thread(read_basis, watched.folder)
        planned = refused = ""
        try:
            planned = (
                await asyncio.to_thread(lambda: plan_part(basis, asked) + next_part(basis, asked)) if asked else ""
            )
        except HeterpsError as error:
            refused = str(error)
        return HTMLResponse(render_what_if(watched.name, basis.fields, asked, planned, refused))

    async def what_if_plan(self, request: Request) -> Response:
        return await self._what_if_part(request, plan_part)

    async def what_if_next(self, request: Request) -> Response:
        return await self._what_if_part(request, next_part)

    async def _what_if_part(self, request: Request, part: Callable[[Basis, Mapping[str, str]], str]) -> Response:
        """A part about a plan, or as `error` why there is none: to a question, that is as good an answer."""
        watched, asked = await self._find(request), dict(request.query_params)
        try:
            found = await asyncio.to_thread(lambda: part(read_basis(watched.folder), asked))
        except HeterpsError as error:
            return JSONResponse({"error": str(error)})
        return JSONResponse({"html": found})

    async def what_if_frontier(self, request: Request) -> Response:
        return await self._what_if_search(request, frontier_part)

    async def what_if_searches(self, request: Request) -> Response:
        return await self._what_if_search(request, searches_part)

    async def _what_if_search(self, request: Request, part: Callable[..., str]) -> Response:
        """A part that takes long. The search for it ends early when the page has gone, or has asked for another."""
        watched, asked = await self._find(request), dict(request.query_params)
        basis, is_over = await asyncio.to_thread(read_basis, watched.folder), threading.Event()
        search = asyncio.create_task(asyncio.to_thread(part, basis, asked, is_over.is_set))
        while not (await asyncio.wait({search}, timeout=LISTEN_S))[0]:
            if await request.is_disconnected():
                is_over.set()
        return JSONResponse({"html": await search})

    async def compare(self, request: Request) -> Response:
        folders = await asyncio.to_thread(self._runs.folders)
        names = dict.fromkeys(request.query_params.getlist("run"))
        found: dict[str, RecordedRun] = {}
        missing: list[str] = []
        running: set[str] = set()
        for name in list(names)[:MOST_COMPARED]:
            try:
                if name not in folders:
                    missing.append(f"{name}: there is no such run.")
                else:
                    found[name] = await asyncio.to_thread(read_run, folders[name])
                    if await asyncio.to_thread(is_running, folders[name]):
                        running.add(name)
            except HeterpsError as error:
                missing.append(str(error))
        if len(names) > MOST_COMPARED:
            missing.append(f"Only the first {MOST_COMPARED} runs are shown.")
        return HTMLResponse(render_comparison(found, missing, running))

    async def metrics(self, _: Request) -> Response:
        def tell() -> bytes:
            return exposition([run_facts(name, folder) for name, folder in sorted(self._runs.folders().items())])

        return Response(await asyncio.to_thread(tell), media_type=CONTENT_TYPE)

    async def style(self, _: Request) -> Response:
        return Response(asset("style.css") + asset("ui.css"), media_type="text/css")

    async def script(self, _: Request) -> Response:
        return Response(asset("ui.js"), media_type="text/javascript")

    async def _find(self, request: Request) -> Watched:
        name = request.path_params["name"]
        known = self._watched.get(name)
        if known is not None and (known.folder / "job.yaml").is_file():
            return known  # pages ask each second, and a folder of a thousand runs takes milliseconds to go through
        folders = await asyncio.to_thread(self._runs.folders)
        if name not in folders:
            raise HTTPException(404, f"There is no run {name} in {self._folder}.")
        return self._watched.setdefault(name, Watched(name, folders[name]))


async def _to_page(request: Request) -> Response:
    """Lead an address without its last slash to the page, relative to which its links are."""
    return RedirectResponse(f"{quote(request.path_params['name'])}/")


def _job(folder: Path) -> Job | None:
    try:
        return load_job(folder / "job.yaml")
    except HeterpsError:
        return None


async def _asked(request: Request) -> dict[str, Any]:
    """Return the object that a request holds. A form of another page cannot send one of this type."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "Send JSON.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY:
            raise HTTPException(413, "That is too long.")
    try:
        asked = json.loads(body)
    except ValueError:
        raise HTTPException(400, "This is no JSON.") from None
    if not isinstance(asked, dict):
        raise HTTPException(400, "Send an object.")
    return asked


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


async def _said(_: Request, error: Exception) -> Response:
    """The job, or the run folder, refuses."""
    return JSONResponse({"error": str(error)}, 409)
