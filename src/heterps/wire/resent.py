"""A channel that loses nothing when a connection breaks: what a peer has not acknowledged is sent again, in order.

    sender   [1] numbers a message and keeps it   [2] passes on what is kept, one after the other: stream 9f, 7 -->
    receiver [3] hands out the next number; what came before, or comes too early, is dropped
             [4] acknowledges with its next message, or alone when none comes         <-- stream 9f, 7 has come
    sender   [5] drops what has come; begins with the oldest of the rest after a connection was made anew

A connection over tcp is closed when its peer is silent for 15 s, and what was in it is lost. Coordinator and workers
would then wait for each other for ever: their messages are not answered one by one. A peer that was started anew has
another stream; what was meant for the process before is dropped.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from heterps.errors import PeerLost
from heterps.wire.channel import Channel, Received
from heterps.wire.message import Frame, contiguous

TEND_S = 0.1
"""Seconds between attempts to pass on, and for which an acknowledgement may wait for a message to go with."""
AGAIN_S = 10.0
"""Seconds without an acknowledgement after which all is sent again though the connection is the same."""
ACKNOWLEDGE_EVERY = 16
"""Number of messages after which an acknowledgement goes alone."""


class Numbers(msgspec.Struct, array_like=True):
    """The part that stands before each message: which one this is, and what has come from its receiver."""

    stream: str
    number: int  # from 1 on; 0: there is no message
    has_come_of: str  # the receiver's stream, as far as it is known: no other process is meant
    has_come: int  # all numbers of it up to this one


class _Kept(NamedTuple):
    number: int
    parts: list[Frame]


@dataclass
class _Peer:
    """What is under way to a peer, and what has come from it."""

    stream: str = ""
    num_sent: int = 0
    num_passed: int = 0  # of those the channel has taken
    kept: deque[_Kept] = field(default_factory=deque)
    again_at: float = 0.0
    unreached_since: float | None = None
    their_stream: str = ""
    has_come: int = 0
    acknowledged: int = 0
    acknowledge_at: float = 0.0

    def begin(self) -> None:
        self.stream, self.num_sent, self.num_passed = secrets.token_hex(4), 0, 0
        self.unreached_since = None
        self.kept.clear()

    def go_back(self) -> None:
        if self.kept:
            self.num_passed = self.kept[0].number - 1


class Resent:
    """Both ends must be Resent. Somebody must receive, now and then: it is then that messages are sent again.

    deadline_s  PeerLost names a peer that could not be reached for so long; None: messages wait for it for ever
    """

    def __init__(
        self, channel: Channel, deadline_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = channel.name
        self.counters = channel.counters
        self._channel, self._deadline_s, self._clock = channel, deadline_s, clock
        self._lock = threading.RLock()
        self._peers: dict[str, _Peer] = {}
        self._num_connects = channel.counters.connects
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Numbers)

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        """Send a message, or keep it until its peer can be reached. It never waits."""
        del deadline_s
        with self._lock:
            to = self._peer(peer)
            to.num_sent += 1
            if not to.kept:
                to.again_at = self._clock() + AGAIN_S
            to.kept.append(_Kept(to.num_sent, [contiguous(part) for part in parts]))  # [1]
            self._pass_on(peer, to)

    def receive(self, timeout_s: float) -> Received | None:
        until = self._clock() + timeout_s
        while True:
            self._tend()
            left_s = until - self._clock()
            received = self._channel.receive(min(max(left_s, 0.0), TEND_S))
            if received is not None:
                with self._lock:
                    message = self._take(*received)
                if message is not None:
                    return received[0], message
            elif left_s <= TEND_S:
                return None

    def begin_anew(self, spared: Collection[str] = ()) -> None:
        """Forget what is under way to all other peers: any of them may be another process from now on."""
        with self._lock:
            for name in self._peers.keys() - {*spared}:
                self.forget(name)

    def forget(self, peer: str) -> None:
        """Forget what is under way to a peer, which will be another process if it is heard of again."""
        with self._lock:
            if peer in self._peers:
                self._peers[peer].begin()
                self._peers[peer].their_stream = ""

    def close(self) -> None:
        self._channel.close()

    def _peer(self, name: str) -> _Peer:
        if name not in self._peers:
            self._peers[name] = _Peer()
            self._peers[name].begin()
        return self._peers[name]

    def _take(self, name: str, parts: list[memoryview]) -> list[memoryview] | None:
        """Return the message, if it is the next one of its stream."""
        try:
            numbers = self._decoder.decode(parts[0])
        except (msgspec.DecodeError, IndexError):
            self.counters.drop("malformed")
            return None
        peer = self._peer(name)
        if numbers.has_come_of == peer.stream:
            while peer.kept and peer.kept[0].number <= numbers.has_come:  # [5]
                peer.kept.popleft()
                peer.again_at = self._clock() + AGAIN_S
            peer.num_passed = max(peer.num_passed, min(numbers.has_come, peer.num_sent))
        if not numbers.number:
            return None
        if numbers.has_come_of not in ("", peer.stream):
            self.counters.drop("for a process before")
            return None
        if numbers.stream != peer.their_stream:
            if numbers.number > 1:
                self.counters.drop("of another stream")
                return None
            if peer.their_stream:
                peer.begin()  # it was started anew
            peer.their_stream, peer.has_come, peer.acknowledged = numbers.stream, 0, 0
        if peer.has_come == peer.acknowledged:
            peer.acknowledge_at = self._clock() + TEND_S
        if numbers.number != peer.has_come + 1:
            self.counters.drop("repeated" if numbers.number <= peer.has_come else "early")
            peer.acknowledged = min(peer.acknowledged, peer.has_come - 1)  # so that it is said again what has come
            return None
        peer.has_come += 1  # [3]
        return parts[1:]

    def _tend(self) -> None:
        """Acknowledge and pass on, where it is time."""
        with self._lock:
            now = self._clock()
            is_new, self._num_connects = self.counters.connects != self._num_connects, self.counters.connects
            for name, peer in self._peers.items():
                if peer.kept and (is_new or now >= peer.again_at):
                    peer.again_at = now + AGAIN_S
                    peer.go_back()  # [5]
                self._pass_on(name, peer)
                waits = peer.has_come - peer.acknowledged
                if waits >= ACKNOWLEDGE_EVERY or (waits and now >= peer.acknowledge_at):
                    self._hand_over(name, peer, 0, [])  # [4]

    def _pass_on(self, name: str, peer: _Peer) -> None:
        """[2] Pass on what is kept, as far as the channel takes it."""
        if peer.num_passed == peer.num_sent:
            return
        for kept in list(peer.kept):
            if kept.number <= peer.num_passed:
                continue
            if not self._hand_over(name, peer, kept.number, kept.parts):
                self._check_time(name, peer)
                return
            peer.num_passed = kept.number
        peer.unreached_since = None

    def _hand_over(self, name: str, peer: _Peer, number: int, parts: list[Frame]) -> bool:
        """Give the channel a message; False where its peer cannot be reached now."""
        numbers = Numbers(peer.stream, number, peer.their_stream, peer.has_come)
        try:
            self._channel.send(name, [self._encoder.encode(numbers), *parts], 0.0)
        except PeerLost:
            return False
        peer.acknowledged = peer.has_come
        return True

    def _check_time(self, name: str, peer: _Peer) -> None:
        now = self._clock()
        if peer.unreached_since is None:
            peer.unreached_since = now
        waited_s = now - peer.unreached_since
        if self._deadline_s is not None and waited_s > self._deadline_s:
            raise PeerLost(
                f"{self.name} could not reach {name} for {waited_s:.0f} s: is it alive, and is the network between "
                "them whole? workers.deadline_s of the job says how long to wait"
            )
