"""Network ports of emulated machines: a message takes the time that the ports of both its ends need for its bytes.

    worker-1.0 --+                                           +-- server-0
                 +-- port of machine a ----> port of machine b
    worker-1.1 --+   [1] sends one message    [2] takes one in   +-- server-1
                         after the other          after the other

    [1] a message has left when the port of its machine has sent all that was sent before it, and the message
    [2] it arrives when the port of the receiver has taken in all that came before it, and the message; that begins
        with its first byte, so a port that is free and no slower adds nothing

Units of one machine share its port, and what they send to each other passes none. When a port is free again is in a
file that the processes of all emulated machines share: they run on one real machine, which has one monotonic clock.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from heterps.errors import PeerLost
from heterps.wire.channel import Channel, Received
from heterps.wire.message import Frame, contiguous

_TIMES = struct.Struct("dd")


class Port(Struct, frozen=True):
    """The network port of an emulated machine.

    bytes_per_s  in each direction, by emulated seconds
    scale        real seconds per emulated second
    folder       where all processes of the job find the state of ports
    """

    machine: str
    bytes_per_s: float
    scale: float
    folder: str

    @property
    def byte_s(self) -> float:
        """Real seconds per byte."""
        return self.scale / self.bytes_per_s


class PortTimes:
    """When the ports of all machines are free again, in real seconds of the monotonic clock."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def register(self, peer: str, port: Port) -> None:
        """Say behind which port a peer is."""
        partial = self._folder / f".{quote(peer, safe='')}-{threading.get_ident()}"
        partial.write_bytes(msgspec.json.encode((port.machine, port.byte_s)))
        partial.rename(self._folder / f"peer-{quote(peer, safe='')}")

    def arrival_s(self, sender: Port, receiver: str, num_bytes: int, now_s: float) -> float:
        """Reserve the ports for a message that is sent now, and return when it arrives."""
        machine: str | None = None
        byte_s = 0.0
        with suppress(FileNotFoundError):  # a peer may have no port, as the coordinator
            told = (self._folder / f"peer-{quote(receiver, safe='')}").read_bytes()
            machine, byte_s = msgspec.json.decode(told, type=tuple[str, float])
        if machine == sender.machine:
            return now_s
        with self._locked():
            sends_s, takes_in_s = self._read(sender.machine)
            begins_s = max(now_s, sends_s)
            left_s = begins_s + num_bytes * sender.byte_s  # [1]
            self._write(sender.machine, left_s, takes_in_s)
            if machine is None:
                return left_s
            sends_s, takes_in_s = self._read(machine)
            taken_in_s = max(takes_in_s, begins_s) + num_bytes * byte_s  # [2]
            self._write(machine, sends_s, taken_in_s)
            return max(left_s, taken_in_s)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self, machine: str) -> tuple[float, float]:
        """When a port has sent, and when it has taken in, all that it was given."""
        try:
            sends_s, takes_in_s = _TIMES.unpack((self._folder / f"port-{quote(machine, safe='')}").read_bytes())
        except FileNotFoundError:
            return 0.0, 0.0
        return sends_s, takes_in_s

    def _write(self, machine: str, sends_s: float, takes_in_s: float) -> None:
        (self._folder / f"port-{quote(machine, safe='')}").write_bytes(_TIMES.pack(sends_s, takes_in_s))


class Limited:
    """A channel whose outgoing messages wait for the ports of both ends. A thread sends them when they are due.

    A message whose receiver has gone meanwhile is dropped and counted, as on any network.
    """

    def __init__(self, channel: Channel, port: Port) -> None:
        self.name = channel.name
        self.counters = channel.counters
        self._channel, self._port = channel, port
        self._times = PortTimes(port.folder)
        self._times.register(channel.name, port)
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, str, list[memoryview]]] = []
        self._number = itertools.count()
        self._is_open = True
        self._thread = threading.Thread(target=self._send_due, name=f"port of {self.name}", daemon=True)
        self._thread.start()

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        del deadline_s  # it is put down at once
        views = [contiguous(part) for part in parts]
        with self._changed:
            if not self._is_open:
                raise PeerLost(f"channel {self.name} is closed")
            due_s = self._times.arrival_s(self._port, peer, sum(view.nbytes for view in views), time.monotonic())
            heapq.heappush(self._due, (due_s, next(self._number), peer, views))
            self._changed.notify()

    def receive(self, timeout_s: float) -> Received | None:
        return self._channel.receive(timeout_s)

    def close(self) -> None:
        with self._changed:
            self._is_open = False
            self._changed.notify()
        self._thread.join()
        self._channel.close()

    def _send_due(self) -> None:
        while True:
            with self._changed:
                while self._is_open and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(max(self._due[0][0] - time.monotonic(), 0.0) if self._due else None)
                if not self._is_open:
                    return
                _, _, peer, views = heapq.heappop(self._due)
            try:
                self._channel.send(peer, views)
            except PeerLost:
                self.counters.drop("peer lost")
