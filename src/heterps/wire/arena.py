"""Memory that one process writes and another reads: an anonymous file, cut into blocks by its writer.

The file is a Linux memfd. It has no name in any file system, so nothing is left behind however a process ends: the
system frees it when the last of both processes has let go of it. A reader opens it through /proc by the writer's
process id and descriptor, which the system allows to the same user only, and checks a random token in its label, so
that it never maps anything else. The file cannot shrink (a seal), so that a reader never meets a hole.
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
ALIGNMENT = 64
"""Blocks begin at multiples of a cache line."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW if hasattr(fcntl, "F_SEAL_SHRINK") else 0

Bytes = NDArray[np.uint8]
Whole = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Where an arena is, for a process of the same user on the same machine."""

    process: Whole
    descriptor: Whole
    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    num_bytes: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_BYTES)]


class Extents:
    """Which bytes of a range are free. The lowest that fit are taken, which keeps the memory in use small and warm."""

    def __init__(self, num_bytes: int) -> None:
        self._free: list[tuple[int, int]] = [(0, num_bytes)]  # (begin, end), sorted, never touching each other

    def take(self, num_bytes: int) -> int | None:
        """Where so many free bytes began; None if there is no such place."""
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

    A room is a block that the writer fills before it is sent; while it has a view of one, that is not reused either.
    """

    def __init__(self, num_bytes: int) -> None:
        """OSError or AttributeError where the system has no such files."""
        token = secrets.token_hex(16)
        self._descriptor = os.memfd_create(label(token), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, num_bytes)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, SEALS)
        self.offer = Offer(os.getpid(), self._descriptor, token, num_bytes)
        self._map = mmap.mmap(self._descriptor, num_bytes)
        self._memory: Bytes | None = np.frombuffer(self._map, np.uint8)
        self._address = address_of(memoryview(self._map))
        self._extents = Extents(num_bytes)
        self._blocks: dict[int, tuple[int, int, float]] = {}  # sent, by number: begin, bytes, when
        self._rooms: dict[int, int] = {}  # that the writer has views of, by begin: bytes
        self._unsent: set[int] = set()  # begins of rooms
        self._left: deque[int] = deque()  # begins of rooms whose last view is gone; filled by any thread
        self._number = 0

    def take(self, num_bytes: int, now_s: float) -> tuple[int, int] | None:
        """A free block's number and where it begins; None if there is no room."""
        size = _aligned(num_bytes)
        begin = self._take(size)
        return None if begin is None else (self._send(begin, size, now_s), begin)

    def room(self, num_bytes: int) -> Bytes | None:
        """A free block to write to; None if there is none. It is free again when it was released and all views gone."""
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
        """Number and begin of the room that the view is, the first time; None if it is none, or was sent before."""
        begin = address_of(view) - self._address if self._unsent else -1
        if begin not in self._unsent or view.nbytes > self._rooms[begin]:
            return None
        self._unsent.remove(begin)
        return self._send(begin, self._rooms[begin], now_s), begin

    def write(self, begin: int, data: memoryview) -> None:
        assert self._memory is not None, "a closed arena"
        self._memory[begin : begin + data.nbytes] = np.frombuffer(data, np.uint8)  # lets other threads run meanwhile

    def release(self, number: int) -> None:
        """The reader has done with a block. Numbers that are not in use are passed over: a peer may say anything."""
        if (block := self._blocks.pop(number, None)) and block[0] not in self._rooms:
            self._extents.give_back(block[0], block[1])

    def oldest_s(self) -> float | None:
        """When the oldest block in use was sent."""
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


def open_arena(offer: Offer) -> Bytes:
    """The bytes of another process's arena, read-only; OSError or ValueError if it is not here or not what it says.

    The memory stays mapped until the array and everything made from it are gone.
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


def is_there(offer: Offer) -> bool:
    """Whether the writer of the arena still has it."""
    try:
        return os.readlink(f"/proc/{offer.process}/fd/{offer.descriptor}") == f"/memfd:{label(offer.token)} (deleted)"
    except OSError:
        return False


def label(token: str) -> str:
    return f"heterps-{token}"
