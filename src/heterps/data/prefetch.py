"""Bounded prefetching: a thread prepares items while the consumer works on earlier ones.

    source --next()--> prepare() --> [ at most `depth` ready items ] --> consumer
    '----------- background thread -----------'

The consumer sees what a plain loop would give: the same items in the same order, and an exception of the source or of
`prepare` at the item where it happened. After `close` (or the end of the `with` block, or when the object is garbage
collected) the thread has ended and the source is closed.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar, cast

T = TypeVar("T")


class OwnsThread:
    """Base of objects that prepare things on a thread of their own (see `start_thread`); use them with `with`."""

    _close: Callable[[], Any]

    def close(self) -> None:
        """End the thread, after it has finished its current item. Items not taken are dropped."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Prefetch(OwnsThread, Generic[T]):
    """Iterates over `prepare(item)` for the items of `source`; up to `depth` of them are prepared ahead of use."""

    def __init__(self, source: Iterable[Any], depth: int, prepare: Callable[[Any], T] | None = None) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self._queue = _Queue(depth)
        self._close = start_thread(self, self._queue.close, _produce, self._queue, iter(source), prepare)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return cast(T, self._queue.take())


class _Queue:
    """A bounded queue of prepared items between the two threads, with the way the source ended."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.items: deque[Any] = deque()
        self.closed = False
        self.end: BaseException | None = None  # StopIteration, or what went wrong
        self.changed = threading.Condition()

    def put(self, item: Any) -> bool:
        """Wait for space, then add an item; False once the queue is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.depth)
            if not self.closed:
                self.items.append(item)
                self.changed.notify_all()
            return not self.closed

    def finish(self, end: BaseException) -> None:
        with self.changed:
            self.end = end
            self.changed.notify_all()

    def take(self) -> Any:
        """Wait for the next item; after the last one every call raises how the source ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self.items or self.end is not None)
            if self.closed:
                raise StopIteration
            if self.items:
                item = self.items.popleft()
                self.changed.notify_all()
                return item
            assert self.end is not None
            raise self.end

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.items.clear()
            self.changed.notify_all()


def _produce(queue: _Queue, source: Iterator[Any], prepare: Callable[[Any], Any] | None) -> None:
    end: BaseException = StopIteration()
    try:
        for item in source:
            if not queue.put(item if prepare is None else prepare(item)):
                break
    except BaseException as error:
        end = error
    finally:
        close = getattr(source, "close", None)  # generators have one: it runs their `finally` here and now
        if close is not None:
            close()
        queue.finish(end)


def start_thread(owner: object, stop: Callable[[], None], target: Callable[..., None], *args: Any) -> Callable[[], Any]:
    """Run `target(*args)` on a daemon thread that lives no longer than `owner`, and return a function that ends it.

    That function calls `stop`, after which `target` must return, and waits for it. It also runs when `owner` is garbage
    collected, so neither `stop` nor `args` may refer to `owner`. Calls after the first do nothing.
    """
    thread = threading.Thread(target=target, args=args, name="prefetch", daemon=True)
    end = weakref.finalize(owner, _end, stop, thread)
    thread.start()
    return end


def _end(stop: Callable[[], None], thread: threading.Thread) -> None:
    stop()
    if thread is not threading.current_thread():
        thread.join()
