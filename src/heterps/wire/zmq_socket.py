"""One ZeroMQ socket with its options, its monitor and its key. It never waits: the channels do.

A ZeroMQ socket belongs to one thread at a time. The methods here are called with the channel's lock held.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from heterps.wire.counters import Counters
from heterps.wire.keys import Keys
from heterps.wire.message import Frame

COPY_BELOW_BYTES = 256 * 1024
"""Smaller frames are copied: releasing an uncopied frame takes a thread of pyzmq, which costs more than the copy."""

CONNECT_MS = 2000
"""Milliseconds for one attempt to connect. The system's own attempts come less and less often, up to 64 s apart."""
WATCH_EVERY = 64
"""Number of attempts to receive after which the monitor is read."""
REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | REFUSALS


@dataclass(frozen=True)
class SocketOptions:
    """Queue sizes, message limits and deadlines of a ZeroMQ socket."""

    queue_messages: int = 64
    """High-water mark of each direction and peer: senders wait when this many messages are queued."""
    frame_bytes: int = 1024**3
    """A peer that sends a larger frame is disconnected before memory is taken."""
    message_frames: int = 1200
    """Messages with more frames are dropped and counted. It is more than any codec allows."""
    send_deadline_s: float = 5.0
    heartbeat_s: float = 5.0
    """Seconds between ZeroMQ's own heartbeats over tcp; a connection is closed when three are missing."""
    open_loopback: bool = False
    """Allow tcp on loopback, which every user of the machine can reach, without keys: for tests."""


class Socket:
    """A ROUTER or DEALER that never blocks, counts its connections and carries the job's key."""

    def __init__(self, context: zmq.Context[Any], kind: int, options: SocketOptions, counters: Counters) -> None:
        self.counters = counters
        self.is_connected = False
        """Whether the one connection of a DEALER is open and its handshake done."""
        self.accepted: set[int] = set()
        """Descriptors of the open connections of a ROUTER."""
        self.num_refused = 0
        """Number of handshakes that failed since the last one that succeeded."""
        self._num_attempts = 0
        self._max_frames = options.message_frames
        self._socket: zmq.Socket[bytes] = context.socket(kind)
        settings = {
            zmq.LINGER: 0,
            zmq.SNDHWM: options.queue_messages,
            zmq.RCVHWM: options.queue_messages,
            zmq.MAXMSGSIZE: options.frame_bytes,
            zmq.RECONNECT_IVL: 20,
            zmq.RECONNECT_IVL_MAX: 1000,
            zmq.CONNECT_TIMEOUT: CONNECT_MS,
            zmq.HEARTBEAT_IVL: int(options.heartbeat_s * 1000),
            zmq.HEARTBEAT_TIMEOUT: int(options.heartbeat_s * 3000),
        }
        for option, value in settings.items():
            self._socket.setsockopt(option, value)
        self._socket.copy_threshold = COPY_BELOW_BYTES
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(WATCHED)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self.descriptors = (self._socket.fileno(), self._monitor.fileno())
        """Descriptors to poll: readable when the socket, or its monitor, may have changed."""
        self.watch()  # a descriptor signals nothing before the first read

    def set(self, option: int, value: int | bytes) -> None:
        self._socket.setsockopt(option, value)

    def use_keys(self, keys: Keys, *, is_server: bool) -> None:
        self.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
        self.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
        if is_server:
            self.set(zmq.CURVE_SERVER, 1)
        else:
            self.set(zmq.CURVE_SERVERKEY, keys.public.encode())

    def bind(self, address: str) -> str:
        """Bind, and return the bound address, with its port number where `address` has a *."""
        before = os.umask(0o177)  # a socket in the file system is for its owner, from its first moment
        try:
            self._socket.bind(address)
        finally:
            os.umask(before)
        return bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def connect(self, address: str) -> None:
        self._socket.connect(address)

    def try_send(self, parts: Sequence[Frame]) -> bool:
        """Send without waiting; False if the queue is full or no peer is connected.

        Raises zmq.ZMQError with EHOSTUNREACH if this is a ROUTER and the named peer is not connected.
        """
        try:
            self._socket.send_multipart(cast("Sequence[bytes]", parts), zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return False
        return True

    def try_receive(self) -> list[memoryview] | None:
        self._num_attempts += 1
        if self._num_attempts % WATCH_EVERY == 0:  # a busy receiver never waits, where it would read the monitor
            self.watch()
        try:
            while (views := self._receive_whole()) is None:
                self.counters.drop("too many frames")
        except zmq.Again:
            return None
        return views

    def _receive_whole(self) -> list[memoryview] | None:
        """Return the next message; None if it has too many frames, which are discarded one by one."""
        views: list[memoryview] = []
        num_frames, more = 0, True
        while more:  # the first frame of a message comes with all others: none of them makes us wait
            frame = self._socket.recv(zmq.DONTWAIT, copy=False)
            num_frames, more = num_frames + 1, frame.more
            if num_frames <= self._max_frames:
                views.append(frame.buffer)
            else:
                views.clear()
        return views if num_frames <= self._max_frames else None

    def has_message(self) -> bool:
        return _is_readable(self._socket)

    def watch(self) -> None:
        """Record what the monitor saw. Call it often: libzmq blocks when the monitor's queue is full."""
        while _is_readable(self._monitor):
            seen = recv_monitor_message(self._monitor, zmq.DONTWAIT)
            event = seen["event"]
            if event == zmq.EVENT_ACCEPTED:
                self.accepted.add(seen["value"])
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_connected, self.num_refused = True, 0
                self.counters.connects += 1
            elif event == zmq.EVENT_DISCONNECTED:  # also after a handshake that failed, and that names no descriptor
                self.is_connected = False
                self.accepted.discard(seen["value"])
                self.counters.disconnects += 1
            elif event & REFUSALS:
                self.num_refused += 1
                self.counters.refusals += 1

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()


def _is_readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(cast("int", socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
