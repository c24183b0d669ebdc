"""Change how the threads of this process run, temporarily."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SWITCH_S = 0.0005


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with `count` threads inside the context, and restore the previous number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_torch_thread() -> None:
    """Let torch compute in the calling thread alone.

    A thread must say so itself, whatever others have set before: for products of one row torch does not look it up.
    """
    torch.set_num_threads(1)


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let threads of this process take turns more often than Python does by default.

    A kernel gives the interpreter away and takes it back: with the default of 5 ms it may wait that long for a thread
    that reads and prepares data, which is longer than many steps take.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
