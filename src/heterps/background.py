"""Do something on a thread of its own while the caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def start(work: Callable[[], T], name: str) -> Future[T]:
    """Begin `work` on a new thread of this name; the future has its result, or what it raised.

    The thread does not keep the process from ending.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # whatever it is: who waits must not wait for ever
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
