"""A WebHDFS name node over a local folder, on loopback: what fsspec's client asks when it lists and reads files."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = "/webhdfs/v1"


@contextmanager
def name_node(folder: Path) -> Iterator[str]:
    """The address `webhdfs://host:port` under which the files of `folder` are."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
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
                first = int(asked["offset"])
                self._answer(200, path.read_bytes()[first : first + int(asked["length"])])

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
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
