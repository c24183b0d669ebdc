"""S3 on loopback: moto's server on a thread, with a bucket for each test, and a delay and failures if wanted."""

from __future__ import annotations

import logging
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest


class Proxied:
    """moto's application behind a delay, failures and a log of requests (method, path, range)."""

    def __init__(self, application: Any) -> None:
        self._application, self._lock = application, threading.Lock()
        self.delay_s = 0.0
        self.failing: Iterator[int] = repeat(0)
        self.log: list[tuple[str, str, str]] = []

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        time.sleep(self.delay_s)
        with self._lock:
            self.log.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_RANGE", "")))
            status = next(self.failing, 0)
        if status:
            start_response(f"{status} no", [("Content-Length", "0")])
            return [b""]
        return self._application(environ, start_response)


class S3Server:
    """A running server: its address, and how it behaves."""

    def __init__(self, endpoint: str, behaviour: Proxied) -> None:
        self.endpoint, self.behaviour = endpoint, behaviour

    def put(self, bucket: str, folder: Path) -> None:
        """Make a bucket of the files of a folder."""
        self._request("PUT", f"/{bucket}")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self._request("PUT", f"/{bucket}/{path.relative_to(folder)}", path.read_bytes())

    def _request(self, method: str, path: str, data: bytes = b"") -> None:
        signed = "AWS4-HMAC-SHA256 Credential=test/20300101/us-east-1/s3/aws4_request"
        headers = {"Authorization": signed, "Content-Type": "application/octet-stream"}
        urllib.request.urlopen(urllib.request.Request(self.endpoint + path, data, headers, method=method)).close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server until the end of the block, with credentials for it in the environment."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    behaviour = Proxied(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, behaviour, threaded=True, request_handler=MotoRequestHandler)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "REGION": "us-east-1"}.items():
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        os.environ.pop("AWS_PROFILE", None)
        try:
            yield S3Server(f"http://127.0.0.1:{server.server_port}", behaviour)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
