"""`make links`, with pages whose links lead to a site on this machine: some are there, gone, or silent."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs/check_links.py"


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/there" else 404)
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def links(folder: Path, *addresses: str) -> tuple[int, str]:
    """The exit code of the script and what it says of a page with these links."""
    (folder / "conf.py").write_text('extensions = ["myst_parser"]\nlinkcheck_retries = 1\n')
    text = " ".join(f"[link]({address})" for address in addresses)
    (folder / "index.md").write_text(f"# Page\n\n{text}\n\n[here](#page)\n")
    words = [sys.executable, SCRIPT, folder, folder, folder / "out"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_links_that_are_there_are_counted_and_one_that_is_gone_is_named(tmp_path: Path, site: str) -> None:
    assert links(tmp_path, f"{site}/there") == (0, "All 1 links to other sites lead somewhere.\n")
    code, said = links(tmp_path, f"{site}/there", f"{site}/gone")
    assert code == 1
    assert said == f"index.md:3: {site}/gone: 404\n1 of 2 links lead nowhere.\n"


def test_where_no_site_answers_it_says_that_nothing_was_checked(tmp_path: Path, site: str) -> None:
    silent = "http://127.0.0.1:9"  # nobody listens at the port of `discard`
    code, said = links(tmp_path, f"{silent}/a", f"{silent}/b")
    assert code == 1
    assert said.startswith("No link was checked: none of the sites that 2 links lead to answers from here.")
    code, said = links(tmp_path, f"{silent}/a", f"{site}/there")
    assert (code, "no answer" in said, "1 of 2 links lead nowhere." in said) == (1, True, True)
