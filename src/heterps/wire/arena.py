"""Shared memory that one process writes and another reads: an anonymous file that the writer divides into blocks.

The file is a Linux memfd. It has no name in any file system, so nothing is left behind however a process ends: the
system frees it when both processes have closed it. A reader opens it through /proc by the writer's process id and
descriptor, which the system allows to the same user only, and checks the random token in its label, so that it never
maps anything else. A seal keeps the file from shrinking, so that a reader never accesses missing pages.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import mmap
import os
import secrets
import weakref
from collections import deque
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

LARGEST_BYTES = 1 << 36
"""Largest arena that a reader maps."""
ALIGNMENT = 64
"""Blocks begin at multiples of this many bytes, a cache line."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if hasattr(fcntl, "F_SEAL_SHRINK") else 0

Bytes = NDArray[np.uint8]
Whole = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class ArenaOffer(msgspec.Struct, frozen=True, array_like=True):
    """The place of an arena, for a process of the same user on the same machine."""

    process: Whole
    descriptor: Whole
    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    num_bytes: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_BYTES)]


class Extents:
    """A first-fit allocator of byte ranges: taking the lowest free range keeps the memory in use small and cached."""

    def __init__(self, num_bytes: int) -> None:
        self._free: list[tuple[int, int]] = [(0, num_bytes)]  # (begin, end), sorted, never touching each other

    def take(self, num_bytes: int) -> int | None:
        """Take the first free range of `num_bytes` and return where it begins; None if none is large enough."""
        for place, (begin, end) in enumerate(self._free):
            if end - begin >= num_bytes:
                rest = (begin + num_bytes, end)
                self._free[place : place + 1] = [rest] if rest[0] < end else []
                return begin
        return None

    def give_back(self, begin: int, num_bytes: int) -> None:
        end = begin + num_bytes
        place = bisect.bisect(self._free, (begin, end))
        if place < len(self._free) and self._free[place][0] == end:
            end = self._free.pop(place)[1]
        if place > 0 and self._free[place - 1][1] == begin:
            place -= 1
            begin = self._free.pop(place)[0]
        self._free.insert(place, (begin, end))


class Arena:
    """The writer's side. Blocks are numbered in the order of sending; none is reused before it was released.

    A room is a block that the writer fills before sending it; it is not reused while the writer has a view of it.
    """

    def __init__(self, num_bytes: int) -> None:
        """Create the file; raises OSError or AttributeError where the system has no memfd."""
        token = secrets.token_hex(16)
        self._descriptor = os.memfd_create(label(token), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, num_bytes)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, SEALS)
        self.offer = ArenaOffer(os.getpid(), self._descriptor, token, num_bytes)
        self._map = mmap.mmap(self._descriptor, num_bytes)
        self._memory: Bytes | None = np.frombuffer(self._map, np.uint8)
        self._address = address_of(memoryview(self._map))
        self._extents = Extents(num_bytes)
        self._blocks: dict[int, tuple[int, int, float]] = {}  # sent, by number: begin, bytes, when
        self._rooms: dict[int, int] = {}  # begin: bytes of the rooms that the writer has views of
        self._unsent: set[int] = set()  # where the rooms that were not sent yet begin
        self._left: deque[int] = deque()  # where rooms begin whose last view is gone; any thread appends
        self._number = 0

    def take(self, num_bytes: int, now_s: float) -> tuple[int, int] | None:
        """Take a free block and return its number and where it begins; None if the arena is full."""
        size = _aligned(num_bytes)
        begin = self._take(size)
        return None if begin is None else (self._send(begin, size, now_s), begin)

    def room(self, num_bytes: int) -> Bytes | None:
        """Return a free block to write to; None if the arena is full.

        The block is free again when it was released and all views of it are gone.
        """
        begin = self._take(_aligned(num_bytes))
        if begin is None:
            return None
        assert self._memory is not None, "a closed arena"
        self._rooms[begin] = _aligned(num_bytes)
        self._unsent.add(begin)
        block = self._memory[begin : begin + num_bytes]
        # Views of a memoryview share and keep the block, where those of an array would share what the block is part of.
        weakref.finalize(block, self._left.append, begin).atexit = False
        return np.frombuffer(block.data, np.uint8)

    def send_room(self, view: memoryview, now_s: float) -> tuple[int, int] | None:
        """Return number and begin of the room behind `view`; None if it is not a room, or was sent before."""
        begin = address_of(view) - self._address if self._unsent else -1
        if begin not in self._unsent or view.nbytes > self._rooms[begin]:
            return None
        self._unsent.remove(begin)
        return self._send(begin, self._rooms[begin], now_s), begin

    def write(self, begin: int, data: memoryview) -> None:
        assert self._memory is not None, "a closed arena"
        self._memory[begin : begin + data.nbytes] = np.frombuffer(data, np.uint8)  # lets other threads run meanwhile

    def release(self, number: int) -> None:
        """Free a block that the reader no longer needs. Unknown numbers are ignored: a peer may send anything."""
        if (block := self._blocks.pop(number, None)) and block[0] not in self._rooms:
            self._extents.give_back(block[0], block[1])

    def oldest_s(self) -> float | None:
        """Time at which the oldest block in use was sent; None if no block is in use."""
        return next(iter(self._blocks.values()))[2] if self._blocks else None

    def close(self) -> None:
        self._memory = None
        with contextlib.suppress(BufferError):  # views of rooms keep the memory until they are gone
            self._map.close()
        os.close(self._descriptor)

    def _take(self, size: int) -> int | None:
        while self._left:
            begin = self._left.popleft()
            room_bytes = self._rooms.pop(begin)
            self._unsent.discard(begin)
            if all(block[0] != begin for block in self._blocks.values()):
                self._extents.give_back(begin, room_bytes)
        return self._extents.take(size)

    def _send(self, begin: int, size: int, now_s: float) -> int:
        self._number += 1
        self._blocks[self._number] = (begin, size, now_s)
        return self._number


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def open_arena(offer: ArenaOffer) -> Bytes:
    """Map another process's arena and return its bytes, read-only.

    Raises OSError if it cannot be opened, ValueError if it is not the arena that was offered. The memory stays mapped
    until the array and everything made from it are gone.
    """
    # Without blocking: what lies behind the path is not known yet.
    descriptor = os.open(
        f"/proc/{offer.process}/fd/{offer.descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    )
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")
        if found != f"/memfd:{label(offer.token)} (deleted)":
            raise ValueError(f"{found} is not the arena that was offered")
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise ValueError("an arena must be sealed against shrinking")
        if os.fstat(descriptor).st_size != offer.num_bytes:
            raise ValueError(f"the arena has {os.fstat(descriptor).st_size} bytes, not {offer.num_bytes}")
        return np.frombuffer(mmap.mmap(descriptor, offer.num_bytes, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(descriptor)


def is_there(offer: ArenaOffer) -> bool:
    """Tell whether the writer still has the arena open."""
    try:
        return os.readlink(f"/proc/{offer.process}/fd/{offer.descriptor}") == f"/memfd:{label(offer.token)} (deleted)"
    except OSError:
        return False


def label(token: str) -> str:
    return f"heterps-{token}"
