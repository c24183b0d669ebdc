"""Mailbox: a worker's way to the coordinator and its neighbours, over one channel or several.

    the stage before  --connects-->  [listening channel] --thread--+
                                                                   +--> one queue --> receive
    coordinator, the stage after  <--  [reaching channel] --thread--+

Over sockets a worker listens to the stage before and reaches for the stage after; values and gradients go both ways on
one connection. In memory one channel does for all.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from heterps.errors import HeterpsError, PeerLost
from heterps.training.protocol.messages import Backward, Forward, JobCodec, Message
from heterps.training.worker.core import COORDINATOR
from heterps.wire import Channel, Shared, WireError
from heterps.wire.arrays import Dtype
from heterps.wire.message import message_bytes

POLL_S = 0.2
"""How soon a thread that receives notices that the mailbox is closed."""


class Envelope(NamedTuple):
    sender: str
    message: Message
    values: dict[str, Any] | None


class Mailbox:
    """`reach(peer, address)` connects the reaching channel; without one all peers are reached by the listening one.

    coding  to which values between stages are rounded
    """

    def __init__(
        self,
        listening: Channel,
        reaching: Channel | None = None,
        reach: Callable[[str, str], None] | None = None,
        coding: Dtype = "fp32",
    ) -> None:
        self.name = listening.name
        self._listening, self._reaching, self._reach = listening, reaching, reach
        self._codec = JobCodec(coding)
        self.border_bytes = 0
        self._reached: dict[str, str] = {}
        self._closed = threading.Event()
        self._queue: queue.Queue[tuple[str, list[memoryview]] | HeterpsError] = queue.Queue()
        channels = [listening, reaching] if reaching is not None else []
        self._threads = [
            threading.Thread(target=self._fetch, args=(channel,), name=f"mailbox of {self.name}", daemon=True)
            for channel in channels
        ]
        for thread in self._threads:
            thread.start()

    def connect(self, addresses: Mapping[str, str]) -> None:
        """Reach these peers from now on. Any neighbour may have been started anew, and nothing is under way to it."""
        for channel in (self._listening, self._reaching):
            if isinstance(channel, Shared):
                channel.begin_anew(spared=[COORDINATOR])
        for peer, address in addresses.items():
            if self._reach is not None and self._reached.get(peer) != address:
                self._reach(peer, address)
                self._reached[peer] = address

    def forget(self, peer: str) -> None:
        """Send nothing again to a peer that has died: another may take its place only after its deadline."""
        for channel in (self._listening, self._reaching):
            if isinstance(channel, Shared):
                channel.forget(peer)

    def send(self, peer: str, message: Message, values: Mapping[str, Any] | None = None) -> None:
        reached = self._reaching is not None and peer in self._reached
        channel = self._reaching if reached and self._reaching is not None else self._listening
        parts = self._codec.encode(message, values)
        channel.send(peer, parts)
        if isinstance(message, Forward | Backward):
            self.border_bytes += message_bytes(parts)

    def receive(self, timeout_s: float) -> Envelope | None:
        """The next envelope; None if none came in time. Raises what the channel met, or WireError for what is none."""
        if not self._threads:
            came = self._listening.receive(timeout_s)
        else:
            try:
                found = self._queue.get(block=timeout_s > 0, timeout=timeout_s)
            except queue.Empty:
                return None
            if isinstance(found, HeterpsError):
                raise found
            came = found
        if came is None:
            return None
        sender, parts = came
        try:
            return Envelope(sender, *self._codec.decode(parts))
        except WireError as error:
            raise type(error)(f"{sender} sent what is no message: {error}") from error

    def close(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()
        self._listening.close()
        if self._reaching is not None:
            self._reaching.close()

    def _fetch(self, channel: Channel) -> None:
        try:
            while not self._closed.is_set():
                if (came := channel.receive(POLL_S)) is not None:
                    self._queue.put(came)
        except HeterpsError as error:
            self._queue.put(error)
        except Exception as error:  # whatever breaks the channel: nobody waits for what cannot come
            self._queue.put(PeerLost(f"{self.name} cannot receive any more: {type(error).__name__}: {error}"))
