"""Nothing is left behind: no thread, descriptor or shared memory outlives a test of the wire."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from heterps.wire.keys import Keys, create_keys, load_keys


def threads() -> set[str]:
    """Threads of Python, but for the one of pyzmq that lives as long as the process."""
    return {thread.name for thread in threading.enumerate() if type(thread).__name__ != "GarbageCollectorThread"}


def descriptors() -> set[str]:
    """What open descriptors point at."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:
            continue
        if target.startswith(("socket:", "/memfd:", "anon_inode:")):
            found.add(f"{entry} {target}")
    return found


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:heterps")


@pytest.fixture(scope="session", autouse=True)
def _start_what_pyzmq_keeps() -> None:
    """The first frame that is not copied starts a context and a thread that stay."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://warm")
        two.connect("inproc://warm")
        one.copy_threshold = 0
        sent = one.send(b"x" * 1000, copy=False, track=True)
        two.recv(copy=True)
        sent.wait(30)


@pytest.fixture(autouse=True)
def _nothing_left(_start_what_pyzmq_keeps: None) -> Iterator[None]:
    before = threads(), descriptors(), set(os.listdir("/dev/shm")), mappings()
    yield
    gc.collect()
    after = threads(), descriptors(), set(os.listdir("/dev/shm")), mappings()
    for what, old, new in zip(("threads", "descriptors", "shared memory"), before, after, strict=False):
        assert not new - old, f"{what} left behind: {new - old}"  # type: ignore[operator]
    assert after[3] <= before[3], "mappings of shared memory left behind"


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return load_keys(create_keys(tmp_path / "keys"))
