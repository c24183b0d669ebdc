"""Channels between processes over ZeroMQ: a server end that accepts many peers, a client end that connects to many.

    ClientChannel "worker-0"                       ServerChannel "server-1"
      DEALER --> server-0                            ROUTER, bound to ipc://... or tcp://...
      DEALER ----------------------------------->      knows its peers by the names they connect with

Any thread may send while one receives. A ZeroMQ socket may be used by one thread at a time, so a lock is held for each
attempt and never while waiting; waiting is done on file descriptors:

    receive:  [1] attempt   [2] nothing: poll the sockets' descriptors and our own   [3] again, until the deadline
    send:     [4] attempt   [5] if a message came in meanwhile and a receiver waits, wake it

Step 5 is needed because a socket's descriptor signals a change only once, and an attempt to send consumes the signal.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from heterps.errors import ConfigError, PeerLost
from heterps.wire.address import check_address, check_folder, refuse_if_served
from heterps.wire.channel import BackPressure, Received
from heterps.wire.counters import Counters
from heterps.wire.gatekeeper import Gatekeeper
from heterps.wire.keys import Keys
from heterps.wire.message import Frame, contiguous
from heterps.wire.zmq_socket import Socket, SocketOptions

MAX_REFUSALS = 3
"""Number of handshakes in a row that a peer may refuse; one may fail only because the peer is being stopped."""
LIFE = "~"
"""Stands between the name of a peer and the number of its life, in what it connects with."""
RETRY_S = 0.005
"""Seconds until a sender tries again: no descriptor signals reliably that a queue has space."""


class _ZmqChannel(ABC):
    """Common base of both ends: the lock, waiting and waking up."""

    def __init__(self, name: str, keys: Keys | None, options: SocketOptions) -> None:
        if not 1 <= len(name.encode()) <= 255 or name[0] == "\0":
            raise ConfigError(f"a peer's name has 1 to 255 bytes, not {len(name.encode())}: {name[:50]!r}")
        self.name = name
        self.counters = Counters()
        self._routing_id = name.encode()
        self._keys = keys
        self._options = options
        self._lock = threading.Lock()
        self._sockets: dict[str, Socket] = {}
        self._is_open = True
        self._is_waiting = False
        self._context: zmq.Context[Any] = zmq.Context()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)

    def receive(self, timeout_s: float) -> Received | None:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._check_open()
                received = self._take()  # [1]
                self._is_waiting = received is None
            if received is not None:
                self.counters.received(received[1])
                return received
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            self._wait(left_s)

    def _wait(self, left_s: float) -> None:
        """Wait until a message may have come or a connection changed, and record changed connections."""
        ready = {descriptor for descriptor, _ in self._poll.poll(math.ceil(left_s * 1000))}  # [2]
        self._is_waiting = False
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
        with self._lock:
            for socket in self._sockets.values():
                if not ready or socket.descriptors[1] in ready:
                    socket.watch()

    def close(self) -> None:
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._leave()
            for socket in self._sockets.values():
                socket.close()
            self._sockets.clear()
        self._context.term()
        os.close(self._wake)

    @abstractmethod
    def _take(self) -> Received | None:
        """Return a message that has already arrived, or None."""

    @abstractmethod
    def _leave(self) -> None:
        """Release the channel's other resources, while its sockets are still open."""

    def _add(self, name: str, socket: Socket) -> None:
        self._sockets[name] = socket
        for descriptor in socket.descriptors:
            self._poll.register(descriptor, select.POLLIN)

    def _dial(self, peer: str, address: str, *, queues: bool = False) -> None:
        """Connect a socket of its own to a peer, or anew to its new address; messages under way there are lost.

        Unless it `queues`, messages are for a connected peer only, so that an absent one is noticed.
        """
        check_address(address, self._keys, open_loopback=self._options.open_loopback)
        check_folder(address, self._keys)
        with self._lock:
            self._check_open()
            if peer in self._sockets:
                self._remove(peer)
            socket = Socket(self._context, zmq.DEALER, self._options, self.counters)
            self._add(peer, socket)
            socket.set(zmq.ROUTING_ID, self._routing_id)
            socket.set(zmq.IMMEDIATE, 0 if queues else 1)
            if self._keys is not None:
                socket.use_keys(self._keys, is_server=False)
            socket.connect(address)
            os.eventfd_write(self._wake, 1)

    def _remove(self, name: str) -> None:
        socket = self._sockets.pop(name)
        for descriptor in socket.descriptors:
            self._poll.unregister(descriptor)
        socket.close()

    def _attempt(self, socket: Socket, parts: Sequence[Frame]) -> bool:
        try:
            return socket.try_send(parts)
        finally:
            if self._is_waiting and socket.has_message():
                os.eventfd_write(self._wake, 1)  # [5]

    def _check_open(self) -> None:
        if not self._is_open:
            raise PeerLost(f"channel {self.name} is closed")


class ServerChannel(_ZmqChannel):
    """A bound end; it sends to peers by the names that they connected with, and to those that it was told to reach.

    With `keys` every peer must hold the same key. Of a peer with several lives the newest is heard and reached, and
    what still comes from an earlier one is dropped. A peer that connects under a name and life in use replaces the one
    before; two living ones would replace each other again and again, until ZeroMQ ends this process.
    """

    def __init__(
        self, name: str, address: str, *, keys: Keys | None = None, options: SocketOptions = SocketOptions()
    ) -> None:
        check_address(address, keys, open_loopback=options.open_loopback)
        check_folder(address, keys)
        refuse_if_served(address)
        super().__init__(name, keys, options)
        self.address = ""
        """Address to which the channel is bound, with its port number."""
        self._lives: dict[str, int] = {}  # newest of each peer that has some
        self._gatekeeper = Gatekeeper(self._context, keys) if keys is not None else None
        self._socket = Socket(self._context, zmq.ROUTER, options, self.counters)
        self._add(name, self._socket)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)
        if keys is not None:
            self._socket.use_keys(keys, is_server=True)
        try:
            self.address = self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"address {address}: {error.strerror}: is the port taken, or the folder missing?"
            ) from None

    @property
    def num_connected(self) -> int:
        """Number of open connections, including those in their handshake."""
        with self._lock:
            self._check_open()
            self._socket.watch()
            return len(self._socket.accepted)

    def reach(self, peer: str, address: str) -> None:
        """Connect to a peer that is itself a bound end, instead of the one before."""
        for other in [name for name in self._sockets if name != self.name]:
            with self._lock:
                self._remove(other)
        self._dial(peer, address, queues=True)

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        reached = self._sockets.get(peer) if peer != self.name else None
        known_as = f"{peer}{LIFE}{self._lives[peer]}" if peer in self._lives else peer
        views: list[Frame] = [*([] if reached else [known_as.encode()]), *map(contiguous, parts)]
        wait_s = self._options.send_deadline_s if deadline_s is None else deadline_s
        deadline = time.monotonic() + wait_s
        while True:
            try:
                with self._lock:
                    self._check_open()
                    if self._attempt(reached or self._socket, views):  # [4]
                        break
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                raise PeerLost(f"{self.name} cannot send to {peer}: it is not connected to {self.address}") from None
            if time.monotonic() >= deadline:
                raise BackPressure(_full(self.name, peer, wait_s, self._options))
            time.sleep(RETRY_S)
        self.counters.sent(views if reached else views[1:])

    def _take(self) -> Received | None:
        for peer, socket in self._sockets.items():
            if peer != self.name and (answer := socket.try_receive()) is not None:
                return peer, answer
        while (views := self._socket.try_receive()) is not None:
            try:
                peer = bytes(views[0]).decode()
            except UnicodeDecodeError:
                peer = "\0"
            if len(views) < 2 or peer.startswith("\0"):  # ZeroMQ gives names with a zero to peers without one
                self.counters.drop("nameless")
                continue
            name, mark, life = peer.rpartition(LIFE)
            if not (mark and life.isdecimal()):
                return peer, views[1:]
            if int(life) >= self._lives.get(name, 0):
                self._lives[name] = int(life)
                return name, views[1:]
            self.counters.drop("of an earlier life")
        return None

    def _leave(self) -> None:
        if self._gatekeeper is not None:
            self._gatekeeper.close()
        if self.address.startswith("ipc://"):
            # ZeroMQ leaves the file. Delete it while we still listen, so that it cannot belong to a successor.
            Path(self.address.removeprefix("ipc://")).unlink(missing_ok=True)


class ClientChannel(_ZmqChannel):
    """A connecting end; it knows each server by a name and an address, and reconnects when a connection is lost.

    life  number of times that a peer with this name was started, where an earlier one may still be there
    """

    def __init__(
        self,
        name: str,
        peers: Mapping[str, str],
        *,
        keys: Keys | None = None,
        options: SocketOptions = SocketOptions(),
        life: int | None = None,
    ) -> None:
        for address in peers.values():
            check_address(address, keys, open_loopback=options.open_loopback)
            check_folder(address, keys)
        super().__init__(name, keys, options)
        if life is not None:
            self._routing_id = f"{name}{LIFE}{life}".encode()
        self._addresses: dict[str, str] = {}
        self._turn = 0
        for peer, address in peers.items():
            self.connect(peer, address)

    def connect(self, peer: str, address: str) -> None:
        """Add a peer, or change its address; messages under way to the old address are lost."""
        self._dial(peer, address)
        self._addresses[peer] = address

    def disconnect(self, peer: str) -> None:
        """Remove a peer; messages under way to it are lost."""
        with self._lock:
            self._socket_of(peer)
            self._remove(peer)
            del self._addresses[peer]

    def is_connected(self, peer: str) -> bool:
        with self._lock:
            socket = self._socket_of(peer)
            socket.watch()
            return socket.is_connected

    def wait_connected(self, peer: str, deadline_s: float) -> None:
        """Wait until the peer is connected; raises PeerLost if that takes longer than `deadline_s`."""
        begin = time.monotonic()
        while not self.is_connected(peer):
            waited_s = time.monotonic() - begin
            if waited_s > deadline_s or self._sockets[peer].num_refused >= MAX_REFUSALS:
                raise PeerLost(self._absent(peer, waited_s))
            time.sleep(RETRY_S)

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        views = [contiguous(part) for part in parts]
        wait_s = self._options.send_deadline_s if deadline_s is None else deadline_s
        deadline = time.monotonic() + wait_s
        while True:
            with self._lock:
                if self._attempt(self._socket_of(peer), views):  # [4]
                    break
            is_connected, now = self.is_connected(peer), time.monotonic()
            if now >= deadline and is_connected:
                raise BackPressure(_full(self.name, peer, wait_s, self._options))
            if now >= deadline or self._sockets[peer].num_refused >= MAX_REFUSALS:
                raise PeerLost(self._absent(peer, now - deadline + wait_s))
            time.sleep(RETRY_S)
        self.counters.sent(views)

    def _take(self) -> Received | None:
        """Return a message from the sockets in turn, so that a busy peer does not block the others."""
        names = list(self._sockets)
        for step in range(len(names)):
            peer = names[(self._turn + step) % len(names)]
            socket = self._sockets[peer]
            if (views := socket.try_receive()) is not None:
                self._turn += step + 1
                return peer, views
        return None

    def _leave(self) -> None:
        self._addresses.clear()

    def _socket_of(self, peer: str) -> Socket:
        self._check_open()
        if peer not in self._sockets:
            raise PeerLost(f"{self.name} cannot reach {peer}: it has no address for it; connect it first")
        return self._sockets[peer]

    def _absent(self, peer: str, waited_s: float) -> str:
        hint = "does its process run?"
        if self._sockets[peer].num_refused:
            hint = "it refused the connection: do both hold the same key file?"
        elif self._keys is not None:
            hint = "does its process run, with the same key file?"
        where = peer if peer == self._addresses[peer] else f"{peer} at {self._addresses[peer]}"
        return f"{self.name} waited {waited_s:.1f} s for a connection to {where}: {hint}"


def _full(name: str, peer: str, waited_s: float, options: SocketOptions) -> str:
    return (
        f"{name} waited {waited_s} s to send to {peer}, which is connected but took nothing while "
        f"{options.queue_messages} messages waited: is it busy or stopped?"
    )
