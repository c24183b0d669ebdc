"""The process of `heterps ui`: its socket and its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from heterps.errors import RunError
from heterps.serving.listen import is_loopback, listening, run_app, url_of
from heterps.ui.app import make_app

STOP_S = 2.0


def serve_ui(folder: Path, host: str, port: int, token: str | None, ready: Callable[[str], None]) -> int:
    """Serve the pages of the runs in `folder` until SIGTERM or SIGINT, and return its number.

    `ready` is called with the address to open, which has the token; a new one is drawn if there is none.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder. `heterps train` makes runs in runs/ unless --run is given.")
    drawn = token or secrets.token_urlsafe(24)
    opened = listening(host, port, drawn)
    app = make_app(folder, drawn, is_local=is_loopback(opened.getsockname()[0]))
    return run_app(app, opened, lambda: ready(f"{url_of(opened)}/{drawn}/"), STOP_S)
