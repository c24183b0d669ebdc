"""A WebHDFS name node over a local folder, on loopback: what fsspec's client asks when it lists and reads files.

Reading is redirected to a data node, as HDFS does; here it is the same server.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = "/webhdfs/v1"


@contextmanager
def name_node(
    folder: Path, *, delay_s: float = 0.0, failing: Iterator[int] = repeat(0), log: list[str] | None = None
) -> Iterator[str]:
    """The address `webhdfs://host:port` under which the files of `folder` are.

    delay_s  time that every answer takes
    failing  HTTP status with which each request fails in turn; 0: it does not, -1: it gets no answer
    log      receives the operations that were asked for
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(delay_s)
            parts = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if log is not None:
                log.append(asked["op"])
            with lock:
                status = next(failing, 0)
            if status < 0:
                self.close_connection = True
                return
            if status:
                self._answer(status, b"not now")
                return
            path = folder / unquote(parts.path).removeprefix(ROOT).lstrip("/")
            if not path.exists():
                text = {"exception": "FileNotFoundException", "message": f"File {path.name} does not exist."}
                self._answer(404, json.dumps({"RemoteException": text}).encode())
            elif asked["op"] == "GETFILESTATUS":
                self._answer(200, json.dumps({"FileStatus": _status(path)}).encode())
            elif asked["op"] == "LISTSTATUS":
                listed = sorted(path.iterdir()) if path.is_dir() else [path]
                found = [_status(child) | {"pathSuffix": child.name} for child in listed]
                self._answer(200, json.dumps({"FileStatuses": {"FileStatus": found}}).encode())
            elif asked["op"] == "OPEN":
                node = f"http://127.0.0.1:{server.server_port}{self.path}".replace("op=OPEN", "op=READ")
                self._answer(307, b"", Location=node)
            elif asked["op"] == "READ":  # on a data node
                with path.open("rb") as file:
                    file.seek(int(asked["offset"]))
                    self._answer(200, file.read(int(asked["length"])))

        def _answer(self, code: int, body: bytes, **headers: str) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"webhdfs://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _status(path: Path) -> dict[str, object]:
    return {"type": "DIRECTORY" if path.is_dir() else "FILE", "length": path.stat().st_size, "pathSuffix": ""}
