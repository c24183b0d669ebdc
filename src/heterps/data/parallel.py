"""Work on several threads, with results in the order of the tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(work: Callable[[T], R], tasks: Iterable[T], num_threads: int, name: str) -> Iterator[R]:
    """Run tasks on threads, a few ahead of those that are done, and iterate over their results in order.

    Tasks are taken on the calling thread. An error of a task is raised in its place, and later ones are given up.
    """
    with ThreadPoolExecutor(num_threads, thread_name_prefix=name) as pool:
        running: deque[Future[R]] = deque()
        try:
            for task in tasks:
                running.append(pool.submit(work, task))
                if len(running) > num_threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
