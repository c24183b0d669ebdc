"""What a run could leave behind, and a fixture that lets no test leave any of it.

    pytestmark = pytest.mark.usefixtures("no_leaks")         # in a file of tests that start runs

processes   all that carry the mark of the test in their environment, whoever is their parent by now
threads     of this process
memory      mapped files of shared memory, of this process
files       what this process has open: sockets, eventfds, shared memory
folders     in the folder for temporary files, which is each test's own
"""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

MARK = "HETERPS_TEST_MARK"
GONE_S = 10.0
"""For what is ending to be gone."""


@dataclass(frozen=True)
class Holdings:
    """What this process holds, and the folder for temporary files; `processes` only of the test with the mark."""

    processes: frozenset[str]
    threads: frozenset[threading.Thread]
    memory: frozenset[str]
    files: tuple[str, ...]
    folders: frozenset[str]

    def beyond(self, before: Holdings) -> list[str]:
        """What was not there before, in words."""
        more = [f"process {process}" for process in sorted(self.processes - before.processes)]
        more += [f"thread {thread.name}" for thread in self.threads - before.threads]
        more += [f"shared memory {name}" for name in sorted(self.memory - before.memory)]
        more += [f"folder {name}" for name in sorted(self.folders - before.folders)]
        for kind in sorted(set(self.files)):
            if (count := self.files.count(kind) - before.files.count(kind)) > 0:
                more.append(f"{count} open {kind}")
        return more


def holdings(mark: str) -> Holdings:
    return Holdings(
        processes=frozenset(marked_processes(mark)),
        threads=frozenset(threading.enumerate()),
        memory=frozenset(_shared_memory()),
        files=tuple(_open_files()),
        folders=frozenset(path.name for path in Path(tempfile.gettempdir()).iterdir()),
    )


def marked_processes(mark: str) -> list[str]:
    """Those that run, of all users that we may look at, except this one and those that only wait to be reaped."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{folder.name}: {words.strip()[-60:]}")
        except OSError:  # it is gone, or somebody else's
            continue
    return found


def leaks_since(before: Holdings, mark: str, deadline_s: float = GONE_S) -> list[str]:
    """What is there beyond `before`, and still is after the deadline."""
    gc.collect()
    return wait_until_empty(lambda: holdings(mark).beyond(before), deadline_s)


def wait_until_empty(look: Callable[[], list[str]], deadline_s: float) -> list[str]:
    deadline = time.monotonic() + deadline_s
    while found := look():
        if time.monotonic() > deadline:
            return found
        time.sleep(0.02)
    return []


@pytest.fixture
def process_mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Carried by every process that the test starts."""
    value = secrets.token_hex(8)
    monkeypatch.setenv(MARK, value)
    return value


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a short path, since sockets are made in it."""
    folder = Path(tempfile.mkdtemp(prefix="leaks-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def no_leaks(process_mark: str, own_temporary_folder: Path) -> Iterator[None]:
    """Fails a test that leaves a process, a thread, shared memory, a socket or a temporary folder behind."""
    before = holdings(process_mark)
    yield
    left = leaks_since(before, process_mark)
    assert not left, f"the test left behind: {'; '.join(left)}"


def _shared_memory() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:heterps" in line or "/dev/shm/" in line:
            yield line.split(maxsplit=5)[-1]


def _open_files() -> Iterator[str]:
    """Kinds of what is open that sockets, channels and shared memory are made of."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("socket:"):
            yield "socket"
        elif target.startswith("pipe:"):
            yield "pipe"
        elif "eventfd" in target:
            yield "eventfd"
        elif target.startswith("/memfd:"):
            yield "shared memory"
