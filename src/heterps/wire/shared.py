"""Pass large frames between processes of one machine through shared memory; the channel carries only their place.

    sender                                                  receiver
    [1] offers its arena with the first large message  -->  [2] maps it, accepts (or refuses: the socket is used)
    [3] copies a large frame into a free block, sends
        the block's number and place in its stead      -->  [4] hands out the block itself, read-only, no copy
    [6] the block is free again  <-- with the next message  [5] when the last view of it is gone

Every message has one more part in front, `Notes`: offers, answers, releases, and which parts are blocks. A frame goes
over the socket when the arena is full, refused or not accepted yet. A sender may build a frame in a `room` of the
arena, which saves the copy of step 3. A block is never reused before it was released. If releases stay away (a message
was lost with its connection), the whole arena is given up after `lease_s`, and a new one is offered; receivers that
still have views of the old one keep it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from heterps.errors import PeerLost
from heterps.wire.arena import Arena, ArenaOffer, Bytes, Whole, is_there, open_arena
from heterps.wire.channel import BackPressure, Channel, Received
from heterps.wire.message import Frame, contiguous
from heterps.wire.resent import Resent

NOTES_BYTES = 64 * 1024
"""Longest encoded notes that a receiver decodes."""
RELEASES = 1024
"""Largest number of releases in one message."""
MANY_PEERS = 256
"""Number of peers from which on those without an arena or releases are forgotten when a new peer comes."""


Release = tuple[str, int, int]
"""The arena's token, the block's number, and its size in bytes."""


class SharedBlock(msgspec.Struct, frozen=True, array_like=True):
    """The place of one part of a message in the sender's arena."""

    part: Whole
    number: Whole
    begin: Whole
    num_bytes: Whole


class Notes(msgspec.Struct, array_like=True, omit_defaults=True):
    """Control data that the two ends of a Shared channel exchange in front of a message."""

    has_message: bool = True
    token: str = ""
    """Token of the arena that `blocks` are in."""
    blocks: list[SharedBlock] = []
    released: list[Release] = []
    """Blocks that the sender of these notes has released, in the arena of their receiver."""
    offer: ArenaOffer | None = None
    accepted: str = ""
    refused: str = ""


@dataclass(frozen=True)
class SharedOptions:
    least_bytes: int = 64 * 1024
    """Frames below this size go over the socket."""
    arena_bytes: int = 64 * 1024 * 1024
    """Size of the arena for each peer that is sent to. Memory is taken as blocks are first used."""
    lease_s: float = 30.0
    """Seconds for which an arena may stay full, or unused while another peer needs one, before it is given up."""


class _Outgoing:
    """The state of sending to one peer."""

    def __init__(self) -> None:
        self.arena: Arena | None = None
        self.used_s = 0.0
        self.is_accepted = False
        self.is_refused = False
        self.turn = threading.Lock()  # blocks must come in the order of their numbers, whichever threads send them
        self.releases: deque[Release] = deque()


class _Incoming:
    """The arena that a peer offered, and the number of its last received block: a block comes once."""

    def __init__(self, offer: ArenaOffer, memory: Bytes) -> None:
        self.offer = offer
        self.token = offer.token
        self.memory = memory
        self.last_number = 0


class Shared:
    """A channel that carries large frames in shared memory. Both ends must be Shared, on one machine, of one user.

    Received frames are read-only, and occupy their block while any view of them lives: copy what is kept for long.
    """

    def __init__(self, channel: Channel, options: SharedOptions = SharedOptions()) -> None:
        self.name = channel.name
        self.counters = channel.counters
        self._channel = channel
        self._options = options
        self._lock = threading.Lock()
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: dict[str, _Incoming] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Notes)

    def send(self, peer: str, parts: Sequence[Frame], deadline_s: float | None = None) -> None:
        views = [contiguous(part) for part in parts]
        with self._lock:
            outgoing = self._outgoing.setdefault(peer, _Outgoing())
        with outgoing.turn:
            self._send(peer, outgoing, views, deadline_s)

    def _send(self, peer: str, outgoing: _Outgoing, views: list[memoryview], deadline_s: float | None) -> None:
        with self._lock:
            notes = Notes(released=_take_some(outgoing.releases))
            if any(view.nbytes >= self._options.least_bytes for view in views):
                self._use_arena(outgoing, notes, views)
            arena = outgoing.arena
        elsewhere = {block.part for block in notes.blocks}
        rest = [view for place, view in enumerate(views) if place not in elsewhere]
        try:
            self._channel.send(peer, [self._encoder.encode(notes), *rest], deadline_s)
        except PeerLost:
            with self._lock:
                outgoing.releases.extendleft(reversed(notes.released))
                if arena is not None:
                    for block in notes.blocks:
                        arena.release(block.number)
            raise

    def receive(self, timeout_s: float) -> Received | None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            # Releases travel with messages. They are sent alone if much memory waits for them, or if no message comes.
            self._flush_releases(self._options.arena_bytes // 8)
            received = self._channel.receive(max(deadline_s - time.monotonic(), 0.0))
            if received is None:
                if timeout_s > 0:
                    self._flush_releases(1)
                return None
            message = self._open(*received)
            if message is not None:
                return received[0], message

    def room(self, peer: str, num_bytes: int) -> Bytes | None:
        """Return shared memory to build a frame for `peer` in; the first send of that frame then copies nothing.

        None where frames of this size would be copied anyway, to the socket or to the arena.
        """
        if num_bytes < self._options.least_bytes:
            return None
        with self._lock:
            outgoing = self._outgoing.get(peer)
            if outgoing is None or outgoing.arena is None or not outgoing.is_accepted:
                return None
            return outgoing.arena.room(num_bytes)

    def begin_anew(self, spared: Collection[str]) -> None:
        """Offer other memory to all peers: one of them may be another process than the one that accepted it.

        What is under way to others than the `spared` is not sent again.
        """
        with self._lock:
            for outgoing in self._outgoing.values():
                _give_up(outgoing)
        if isinstance(self._channel, Resent):
            self._channel.begin_anew(spared)

    def forget(self, peer: str) -> None:
        """Send nothing again that is under way to a peer which has died."""
        if isinstance(self._channel, Resent):
            self._channel.forget(peer)

    def close(self) -> None:
        self._channel.close()
        with self._lock:
            for outgoing in self._outgoing.values():
                _give_up(outgoing)
            self._incoming.clear()

    def _use_arena(self, outgoing: _Outgoing, notes: Notes, views: list[memoryview]) -> None:
        """Put the large views into blocks and note them, as far as the arena has space, or offer an arena. [1]"""
        now_s = time.monotonic()
        outgoing.used_s = now_s
        if outgoing.arena is None and not outgoing.is_refused:
            for other in self._outgoing.values():  # their peers are gone, or will be offered a new arena when needed
                if now_s - other.used_s > self._options.lease_s:
                    _give_up(other)
            try:
                outgoing.arena = Arena(self._options.arena_bytes)
            except (OSError, AttributeError):  # no such files on this system, or no memory for one
                outgoing.is_refused = True
        if outgoing.arena is None:
            return
        if not outgoing.is_accepted:
            notes.offer = outgoing.arena.offer  # again and again until an answer comes: any message may be lost
            return
        notes.token = outgoing.arena.offer.token
        for place, view in enumerate(views):
            if view.nbytes < self._options.least_bytes:
                continue
            is_room = (taken := outgoing.arena.send_room(view, now_s)) is not None
            if taken is not None or (taken := outgoing.arena.take(view.nbytes, now_s)) is not None:
                number, begin = taken
                if not is_room:
                    outgoing.arena.write(begin, view)  # [3] under the lock: a refusal would close the arena
                notes.blocks.append(SharedBlock(place, number, begin, view.nbytes))
                self.counters.shared(view.nbytes, is_full=False)
                continue
            self.counters.shared(0, is_full=True)
            oldest_s = outgoing.arena.oldest_s()
            if oldest_s is not None and now_s - oldest_s > self._options.lease_s and not notes.blocks:
                _give_up(outgoing)
            return

    def _open(self, peer: str, parts: list[memoryview]) -> list[memoryview] | None:
        """Return the message behind the notes; None if there is none, or if it is malformed, which is counted."""
        try:
            if not parts or parts[0].nbytes > NOTES_BYTES:
                raise ValueError("no notes")
            notes = self._decoder.decode(parts[0])
            self._handle(peer, notes)
            return self._put_together(peer, notes, parts[1:]) if notes.has_message else None
        except (msgspec.DecodeError, ValueError):
            self.counters.drop("malformed")
            return None

    def _handle(self, peer: str, notes: Notes) -> None:
        """Handle the offers, answers and releases in the notes. [2] [6]"""
        with self._lock:
            if peer not in self._outgoing and len(self._outgoing) >= MANY_PEERS:
                self._outgoing = {
                    name: one
                    for name, one in self._outgoing.items()
                    if one.arena is not None or one.releases or name in self._incoming
                }
            outgoing = self._outgoing.setdefault(peer, _Outgoing())
            token = outgoing.arena.offer.token if outgoing.arena is not None else ""
            for released, number, _ in notes.released:
                if outgoing.arena is not None and released == token:
                    outgoing.arena.release(number)
            if token and notes.accepted == token:
                outgoing.is_accepted = True
            if token and notes.refused == token:
                # A peer that once accepted was replaced by another process, which may yet accept an arena.
                outgoing.is_refused = not outgoing.is_accepted
                _give_up(outgoing)
        if notes.offer is not None:
            self._answer(peer, notes.offer)

    def _answer(self, peer: str, offer: ArenaOffer) -> None:
        known = self._incoming.get(peer)
        answer = Notes(has_message=False, accepted=offer.token)
        if known is None or known.token != offer.token:
            try:
                self._incoming[peer] = _Incoming(offer, open_arena(offer))
                self._incoming = {name: one for name, one in self._incoming.items() if is_there(one.offer)}
            except (OSError, ValueError):  # another machine, container or user
                answer = Notes(has_message=False, refused=offer.token)
        self._tell(peer, answer)

    def _put_together(self, peer: str, notes: Notes, rest: list[memoryview]) -> list[memoryview] | None:
        if not notes.blocks:
            return rest
        known = self._incoming.get(peer)
        if known is None or known.token != notes.token:
            self.counters.drop("unknown arena")
            self._tell(peer, Notes(has_message=False, refused=notes.token))
            return None
        for block in notes.blocks:
            if block.number <= known.last_number or block.begin + block.num_bytes > len(known.memory):
                raise ValueError("a block that came before, or beyond the arena")
            known.last_number = block.number
        parts = list(rest)
        for block in sorted(notes.blocks, key=lambda block: block.part):
            if block.part > len(parts):
                raise ValueError("a part beyond the message")
            parts.insert(block.part, self._view(peer, known, block))
        return parts

    def _view(self, peer: str, known: _Incoming, block: SharedBlock) -> memoryview:
        """Return a view of the block; the block is released when everything made from the view is gone. [4] [5]"""
        array = known.memory[block.begin : block.begin + block.num_bytes]
        releases = self._outgoing[peer].releases
        # All views keep this array alive, and nothing else does. Appending to a deque needs no lock.
        weakref.finalize(array, releases.append, (known.token, block.number, block.num_bytes)).atexit = False
        return contiguous(array)

    def _flush_releases(self, least_bytes: int) -> None:
        """Send releases without a message to each peer that waits for at least `least_bytes` of them."""
        with self._lock:
            waiting = [(peer, outgoing.releases) for peer, outgoing in self._outgoing.items() if outgoing.releases]
        for peer, releases in waiting:
            if sum(release[2] for release in releases.copy()) >= least_bytes:
                some = _take_some(releases)
                if not self._tell(peer, Notes(has_message=False, released=some)):
                    releases.extendleft(reversed(some))

    def _tell(self, peer: str, notes: Notes) -> bool:
        """Send notes without a message and without waiting; False if the peer's queue is full."""
        try:
            self._channel.send(peer, [self._encoder.encode(notes)], 0.0)
        except BackPressure:
            return False
        except PeerLost:
            pass  # the blocks of a peer that is gone need no release
        return True


def _take_some(releases: deque[Release]) -> list[Release]:
    """Remove and return up to RELEASES releases. Threads may call this at the same time: each release goes to one."""
    some: list[Release] = []
    with contextlib.suppress(IndexError):  # there are no more
        while len(some) < RELEASES:
            some.append(releases.popleft())
    return some


def _give_up(outgoing: _Outgoing) -> None:
    if outgoing.arena is not None:
        outgoing.arena.close()
    outgoing.arena = None
    outgoing.is_accepted = False
