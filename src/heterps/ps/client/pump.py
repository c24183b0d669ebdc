"""Pump: the threads and the channel of a Session. A caller that waits for an answer fetches it itself.

    caller's thread   wait: [1] sends what is queued   [2] receives, turn by turn, until its answer is there
    another caller    wait: [3] somebody receives already: sleeps until told, then looks, or takes the turns over
    watcher's thread  [4] takes turns only while answers are due and no caller takes them

One thread at a time receives. An answer that somebody waits for comes without a change of threads, which would cost
as much as the way to the server; one that nobody waits for yet is received by the watcher while its caller computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from heterps.errors import PeerLost
from heterps.ps.client.session import Session
from heterps.ps.protocol.roster import Roster
from heterps.wire import Channel

LONGEST_WAIT_S = 0.05
"""A thread that receives may miss for this long that a caller has made the next time earlier."""
GRACE_S = 0.005
"""The watcher leaves answers that are due to the callers for this long."""


class Pump:
    """Moves messages between `session` and `channel`, and results to futures. Any thread may call it.

    A thread that touches the session holds `lock`. `connect` is told every roster before new servers are spoken to.
    """

    def __init__(
        self, session: Session, channel: Channel, connect: Callable[[Roster], None], clock: Callable[[], float]
    ) -> None:
        self.lock = threading.RLock()
        self._session = session
        self._channel = channel
        self._connect = connect
        self._connected = session.roster
        self._clock = clock
        self._changed = threading.Condition(self.lock)  # for callers: answers came, or nobody receives any more
        self._called = threading.Condition(self.lock)  # for the watcher: there is something to watch
        self._num_waiting = 0  # callers in `wait`
        self._num_turns = 0  # that callers took
        self._is_taken = False  # somebody receives
        self._is_asleep = False  # the watcher, for long
        self._is_over = False
        self._settling: set[Future[Any]] = set()  # their results are known, and are being told
        connect(session.roster)
        self._watcher = threading.Thread(target=self._watch, name=f"heterps-client-{session.worker}", daemon=True)
        self._watcher.start()

    def flush(self) -> None:
        """Send what is queued; the answers are received by a caller that waits, or in a while."""
        with self.lock:
            self._session.flush()
            self._send()
            self._call_watcher()
        self._settle()

    def wait(self, future: Future[Any], timeout_s: float | None) -> None:
        """Wait until the future is done or the time is over. Callbacks of any future may run in this thread."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self.lock:
            self._session.flush()
            self._num_waiting += 1
        try:
            while not future.done():
                left_s = LONGEST_WAIT_S if until_s is None else min(until_s - time.monotonic(), LONGEST_WAIT_S)
                if left_s <= 0:
                    return
                with self.lock:
                    if self._is_over or self._is_taken or future in self._settling:
                        self._send()  # [1]
                        if not future.done():
                            self._changed.wait(left_s)  # [3]
                        continue
                    self._is_taken = True
                    self._num_turns += 1
                self._turn(left_s)  # [2]
        finally:
            with self.lock:
                self._num_waiting -= 1
                self._call_watcher()

    def wait_for_room(self) -> None:
        """Wait, with the lock held, until the session takes calls again; it fails if that takes too long."""
        session = self._session
        session.flush()
        self._send()
        self._call_watcher()
        deadline_s = session.options.deadline_s
        if not self._changed.wait_for(lambda: session.has_room or session.error is not None, deadline_s):
            session.fail(PeerLost(f"servers took no more calls of worker {session.worker} for {deadline_s:g} s"))

    def close(self) -> None:
        """End the thread and the channel. Calls without an answer fail. Safe to call twice."""
        with self.lock:
            if self._is_over:
                return
            self._is_over = True
            self._session.fail(PeerLost("the client was closed"))
            self._changed.notify_all()
            self._called.notify_all()
        self._settle()
        self._watcher.join()
        with self.lock:
            self._changed.wait_for(lambda: not self._is_taken)
        self._channel.close()

    # --- turns -------------------------------------------------------------------------------------------------------

    def _turn(self, longest_s: float) -> None:
        """Send what is due and wait for a message; for the one thread that has set `_is_taken`."""
        try:
            self._exchange(longest_s)
        except Exception as error:  # whatever breaks the channel ends every call: nobody waits for what cannot come
            with self.lock:
                worker = self._session.worker
                self._session.fail(PeerLost(f"worker {worker} cannot reach its servers any more: {error}"))
        finally:
            self._settle(is_end_of_turn=True)

    def _exchange(self, longest_s: float) -> None:
        with self.lock:
            self._send()
            if self._session.has_finished:
                return
            at = self._session.next_time()
        wait_s = longest_s if at is None else min(max(at - self._clock(), 0.0), longest_s)
        received = self._channel.receive(wait_s)
        if received is not None:
            with self.lock:
                self._session.receive(*received, self._clock())
                self._send()  # what waited for credit

    def _send(self) -> None:
        """Send what is due, without waiting: a peer that is not there must not keep the others from theirs."""
        if self._session.roster is not self._connected:
            self._connected = self._session.roster
            self._connect(self._connected)
        for peer, parts in self._session.outgoing(self._clock()):
            try:
                self._channel.send(peer, parts, 0.0)
            except PeerLost:
                self._session.unsent(peer, parts, self._clock())

    def _settle(self, *, is_end_of_turn: bool = False) -> None:
        """Give futures their results, outside the lock, because they run callbacks."""
        with self.lock:
            finished = self._session.finished()
            # From here on nobody waits for a message on behalf of these, though they are not done yet.
            self._settling.update(future for future, _ in finished)
            if is_end_of_turn:
                self._is_taken = False
                self._changed.notify_all()
        if not finished:
            return
        for future, value in finished:
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)
        with self.lock:
            self._settling.difference_update(future for future, _ in finished)
            self._changed.notify_all()

    # --- the watcher -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        seen = -1  # turns of callers before my last turn
        while True:
            with self.lock:
                seen = self._wait_for_turn(seen)
                if self._is_over or self._session.error is not None:
                    break
                self._is_taken = True
                longest_s = LONGEST_WAIT_S if self._session.is_busy else 0.0
            self._turn(longest_s)
        self._settle()

    def _wait_for_turn(self, seen: int) -> int:
        """Wait until answers are due that nobody else receives, or it is time to look whether anything came. [4]"""
        while not self._is_over:
            is_busy = self._session.is_busy
            if is_busy and not self._is_taken and not self._num_waiting and self._num_turns == seen:
                break  # no caller came since my last turn
            seen = self._num_turns
            self._is_asleep = not is_busy
            is_called = self._called.wait(GRACE_S if is_busy else LONGEST_WAIT_S)
            self._is_asleep = False
            if not is_called and not self._is_taken and self._num_turns == seen:
                break
        return seen

    def _call_watcher(self) -> None:
        if self._is_asleep and self._session.is_busy:
            self._called.notify()
