"""The fixture against leaks can fail: everything that a run could leave behind is seen."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from leaks import holdings, leaks_since, marked_processes, wait_until_empty

SLEEP = "import sys; sys.stdin.readline()"


@contextmanager
def a_process() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", SLEEP], stdin=subprocess.PIPE) as child:
        yield
        child.communicate()


@contextmanager
def an_orphan() -> Iterator[None]:
    """A process in a session of its own whose parent has ended."""
    reading, writing = os.pipe()
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], stdin=reading, check=True, timeout=60)
    os.close(reading)
    yield
    os.close(writing)


@contextmanager
def a_thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    yield
    end.set()
    thread.join()


@contextmanager
def a_socket() -> Iterator[None]:
    with socket.socket():
        yield


@contextmanager
def shared_memory() -> Iterator[None]:
    descriptor = os.memfd_create("heterps-test")
    os.ftruncate(descriptor, 4096)
    with mmap.mmap(descriptor, 4096):
        os.close(descriptor)
        yield


@contextmanager
def a_folder() -> Iterator[None]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="heterps-"):
        yield


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (a_process, "process "),
        (an_orphan, "process "),
        (a_thread, "thread forgotten"),
        (a_socket, "1 open socket"),
        (shared_memory, "shared memory /memfd:heterps-test"),
        (a_folder, "folder heterps-"),
    ],
)
def test_what_is_left_behind_is_named_until_it_is_gone(
    leave: Callable[[], AbstractContextManager[None]], words: str, process_mark: str, own_temporary_folder: Path
) -> None:
    before = holdings(process_mark)
    with leave():
        left = leaks_since(before, process_mark, deadline_s=0.0)
        assert any(words in one for one in left), left
    assert leaks_since(before, process_mark) == []


def test_a_process_of_another_test_is_not_this_ones(process_mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERPS_TEST_MARK", "another")
    with a_process():
        assert marked_processes(process_mark) == []
    assert wait_until_empty(lambda: marked_processes("another"), 10.0) == []
