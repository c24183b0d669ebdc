"""Channels: send messages between named peers, over any carrier.

    sender                                        receiver
    send(peer, parts) --> [queue of the peer] --> receive(timeout_s) -> (sender, parts)

A channel delivers each message whole or not at all, and the messages of one peer in the order of sending. It does not
promise that a message arrives: a sender that needs an answer must ask again. `MemoryNetwork` connects channels in one
process, `zmq_channel` connects processes, and `Faulty`, `Checked` and `Shared` wrap any channel.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from heterps.errors import PeerLost
from heterps.wire.counters import Counters
from heterps.wire.message import Frame, contiguous

Received = tuple[str, list[memoryview]]
"""The sender's name and the parts of its message."""


class BackPressure(PeerLost):
    """A connected peer took no more messages until the deadline; the text names it."""


class Channel(Protocol):
    """One named end. Any thread may send; one thread at a time may receive; close it when no other thread uses it."""

    name: str
    """Name by which peers know this end."""
    counters: Counters

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        """Send a message. Returns before it arrives: the sender must not write into its frames afterwards.

        Raises PeerLost if the peer is not connected, BackPressure if its queue stays full, until the deadline. The
        deadline is in seconds from now; None takes the channel's own, 0 does not wait.
        """

    def receive(self, timeout_s: float) -> Received | None:
        """Return the next sender and message; None if none came in time. 0 does not wait. Frames may be read-only."""

    def close(self) -> None:
        """Release all resources; messages under way are lost. Closing twice does nothing."""


class MemoryNetwork:
    """Connects channels inside one process. Messages are not copied: receivers see the sender's memory."""

    def __init__(self, *, queue_messages: int = 1024, send_deadline_s: float = 5.0) -> None:
        self._queue_messages = queue_messages
        self._send_deadline_s = send_deadline_s
        self._channels: dict[str, MemoryChannel] = {}
        self._lock = threading.Lock()

    def channel(self, name: str) -> MemoryChannel:
        """Create a channel with this name; a name can be used again after its channel was closed."""
        with self._lock:
            if name in self._channels:
                raise ValueError(f"there is a channel named {name!r} already: close it first")
            channel = MemoryChannel(name, self, self._queue_messages)
            self._channels[name] = channel
            return channel

    def _deliver(self, sender: str, peer: str, views: list[memoryview], deadline_s: float | None) -> None:
        wait_s = self._send_deadline_s if deadline_s is None else deadline_s
        target = self._channels.get(peer)
        if target is None:
            raise PeerLost(f"{sender} cannot send to {peer}: no channel of this network has that name (any more)")
        try:
            target._inbox.put((sender, views), block=wait_s > 0, timeout=wait_s)
        except queue.Full:
            raise BackPressure(
                f"{sender} waited {wait_s} s to send to {peer}, whose queue stayed full with "
                f"{self._queue_messages} messages: is it still receiving?"
            ) from None

    def _leave(self, channel: MemoryChannel) -> None:
        with self._lock:
            if self._channels.get(channel.name) is channel:
                del self._channels[channel.name]


class MemoryChannel:
    """One end of a MemoryNetwork."""

    def __init__(self, name: str, network: MemoryNetwork, queue_messages: int) -> None:
        self.name = name
        self.counters = Counters()
        self._network = network
        self._is_open = True
        self._inbox: queue.Queue[Received] = queue.Queue(queue_messages)

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        self._check_open()
        views = [contiguous(part) for part in parts]
        self._network._deliver(self.name, peer, views, deadline_s)
        self.counters.sent(views)

    def receive(self, timeout_s: float) -> Received | None:
        self._check_open()
        try:
            sender, views = self._inbox.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return None
        self.counters.received(views)
        return sender, views

    def close(self) -> None:
        self._is_open = False
        self._network._leave(self)

    def _check_open(self) -> None:
        if not self._is_open:
            raise PeerLost(f"channel {self.name} is closed")


def receive_within(channel: Channel, deadline_s: float, waited_for: str) -> Received:
    """Return the next message; raises PeerLost, which names `waited_for`, if none comes in time."""
    begin = time.monotonic()
    received = channel.receive(deadline_s)
    if received is None:
        waited_s = time.monotonic() - begin
        raise PeerLost(f"{channel.name} waited {waited_s:.1f} s for {waited_for}, and nothing came: is it alive?")
    return received
