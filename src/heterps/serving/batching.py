"""Join requests into batches in the order in which they came, and refuse those for which there is no room.

    [1] offer   a request joins the queue; a full queue refuses it (QueueFull)
    [2] due_at  a batch is due when it is as large as it may be, when it has as many requests as the batch before it
                had (clients that were answered often ask again), or when its first request has waited `max_wait_s`
    [3] take    gives the batch, and apart from it the requests whose deadline has passed
    [4] one thread computes the batch and answers each request of it

A lone caller never waits for others: the batch before its request had one request. RequestQueue is [1] to [3], without
a clock or a thread; Batcher is the thread, and runs [4].
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class QueueFull(Exception):
    """A request is refused, since as many wait as may wait."""


class TooLate(Exception):
    """A request waited in the queue until its deadline had passed."""


@dataclass(frozen=True, eq=False)
class Pending(Generic[Question, Answer]):
    """A request that waits for its answer. Times are seconds of one clock that never goes back."""

    question: Question
    num_rows: int
    arrived_s: float
    deadline_s: float
    answer: Future[Answer] = field(default_factory=Future)


class RequestQueue(Generic[Question, Answer]):
    """The requests that wait, in the order in which they came.

    max_rows     rows of a batch. A request is never divided, so a larger one is a batch of its own.
    max_wait_s   seconds that a request may wait for others to join it
    max_waiting  requests that may wait at a time
    """

    def __init__(self, max_rows: int, max_wait_s: float, max_waiting: int) -> None:
        self._max_rows, self._max_wait_s, self._max_waiting = max_rows, max_wait_s, max_waiting
        self._waiting: deque[Pending[Question, Answer]] = deque()
        self._num_rows = 0
        self._last_size = 1  # requests of the batch before

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._max_waiting

    def offer(self, request: Pending[Question, Answer]) -> None:
        """Add a request at the end of the queue. Raises QueueFull if there is no room."""
        if self.is_full:
            raise QueueFull(f"{len(self._waiting)} requests are waiting")
        self._waiting.append(request)
        self._num_rows += request.num_rows

    def due_at(self) -> float:
        """Return the time from which on there is a batch to take: in the past, or infinity while nobody waits."""
        if not self._waiting:
            return math.inf
        if self._num_rows >= self._max_rows or len(self._waiting) >= min(self._last_size, self._max_waiting):
            return -math.inf
        return self._waiting[0].arrived_s + self._max_wait_s

    def take(self, now_s: float) -> tuple[list[Pending[Question, Answer]], list[Pending[Question, Answer]]]:
        """Remove and return the requests of the next batch, and those before them whose deadline has passed."""
        batch: list[Pending[Question, Answer]] = []
        late: list[Pending[Question, Answer]] = []
        num_rows = 0
        while self._waiting:
            first = self._waiting[0]
            is_late = now_s >= first.deadline_s
            if not is_late and batch and num_rows + first.num_rows > self._max_rows:
                break
            self._num_rows -= first.num_rows
            (late if is_late else batch).append(self._waiting.popleft())
            num_rows += 0 if is_late else first.num_rows
        self._last_size = max(1, len(batch))
        return batch, late


class Batcher(Generic[Question, Answer]):
    """One thread that answers requests in batches.

    compute  answers a batch: for each question its answer, or the exception that its request gets. If it raises, every
             request of the batch gets that exception.
    prepare  is called once by the thread, before the first batch
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Question]], Sequence[Answer | Exception]],
        queue: RequestQueue[Question, Answer],
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._compute, self._queue, self._clock, self._prepare = compute, queue, clock, prepare
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="score", daemon=True)
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether a request that came now would be refused."""
        return self._is_closed or self._queue.is_full

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def submit(self, question: Question, num_rows: int, deadline_s: float) -> Future[Answer]:
        """Ask for an answer until `deadline_s` of the clock. Raises QueueFull if there is no room, or it is closed."""
        with self._changed:
            if self._is_closed:
                raise QueueFull("the server is stopping")
            request: Pending[Question, Answer] = Pending(question, num_rows, self._clock(), deadline_s)
            self._queue.offer(request)
            self._changed.notify()
        return request.answer

    def close(self, timeout_s: float | None = None) -> None:
        """Answer what waits, take nothing more, and end the thread; it is waited for `timeout_s` at most."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        self._prepare()
        while (taken := self._next()) is not None:
            batch, late = taken
            for request in _wanted(late):
                _give(request, TooLate(f"it waited for {request.deadline_s - request.arrived_s:.3g} s"))
            running = _wanted(batch)
            if not running:
                continue
            try:
                answers = self._compute([request.question for request in running])
            except Exception as error:  # whatever it is, the thread must answer, and go on
                answers = [error] * len(running)
            for request, answer in zip(running, answers, strict=True):
                _give(request, answer)

    def _next(self) -> tuple[list[Pending[Question, Answer]], list[Pending[Question, Answer]]] | None:
        """Wait for a batch that is due and take it; None once the queue is closed and empty."""
        with self._changed:
            while True:
                now_s, due_s = self._clock(), self._queue.due_at()
                if due_s <= now_s or (self._is_closed and len(self._queue)):
                    return self._queue.take(now_s)
                if self._is_closed:
                    return None
                self._changed.wait(None if due_s == math.inf else due_s - now_s)


def _wanted(requests: list[Pending[Question, Answer]]) -> list[Pending[Question, Answer]]:
    """Those whose senders still wait for the answer."""
    return [request for request in requests if request.answer.set_running_or_notify_cancel()]


def _give(request: Pending[Question, Answer], answer: Answer | Exception) -> None:
    if isinstance(answer, Exception):
        request.answer.set_exception(answer)
    else:
        request.answer.set_result(answer)
