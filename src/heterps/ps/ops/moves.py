"""Moves of slots and dense ranges between servers, while workers go on.

    rebalance (anybody with a channel)      source                         target
    [0] Prepare(new roster)           -->   the rounds that have begun (rounds.py) end, and no others begin
    [1] Switch(new roster)            -->   new epoch; requests of the     new epoch; requests wait until
                                            old one are refused with the   everything that is now its own
                                            new roster; what leaves is     has come
                                            packed, with its ledgers
    [2] Fetch(target, number)         -->   Chunk
    [3] Deliver(source, number)       ----------------------------------> unpacked when all have come
    [4] ForgetMoved(target)           -->   drops the packed slots

A gradient cannot be lost or doubled by that: the ledger of a slot travels with its rows, so the new home knows which
pushes they hold, and workers ask again, by the new roster, for all that was not fully answered. Every step may be
repeated: a rebalance that broke off is simply run again.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from msgspec import Struct

from heterps.errors import PeerLost
from heterps.ps.keys.placement import slot_mask
from heterps.ps.protocol.frames import Frames, PartInfo, pack_part, unpack_part
from heterps.ps.protocol.messages import Count, Ordinal, Refused
from heterps.ps.protocol.roster import Roster, dense_move, moves
from heterps.ps.shard.shard import Shard
from heterps.ps.shard.transfer import Chunk, ShardTransfer, from_chunks, to_chunks
from heterps.wire import Frame, Malformed


class Prepare(Struct, frozen=True, tag="prepare"):
    """Announces the next `roster`: end the rounds that have begun, and begin no others before Switch."""

    id: Count
    roster: Roster


class Switch(Struct, frozen=True, tag="switch"):
    """Follow `roster`, which is the next."""

    id: Count
    roster: Roster


class Fetch(Struct, frozen=True, tag="fetch"):
    """Chunk `number` of what goes to server `target` in `epoch`."""

    id: Count
    epoch: Ordinal
    target: Count
    number: Count


class ChunkReply(Struct, frozen=True, tag="chunk"):
    """The answer to Fetch. The frames are the manifest for number 0, and a part of `table` otherwise."""

    id: Count
    last: bool
    table: str = ""
    part: PartInfo | None = None


class Deliver(Struct, frozen=True, tag="deliver"):
    """A chunk as `source` gave it, with its frames."""

    id: Count
    epoch: Ordinal
    source: Count
    number: Count
    last: bool
    table: str
    part: PartInfo | None


class ForgetMoved(Struct, frozen=True, tag="forget"):
    """Tells the source that what it packed for `target` has arrived."""

    id: Count
    epoch: Ordinal
    target: Count


class Agreed(Struct, frozen=True, tag="agreed"):
    """The answer to Prepare, Switch, Deliver and ForgetMoved: it is so now, or was already."""

    id: Count


# --- a server's side -------------------------------------------------------------------------------------------------


class Handover:
    """What a server has packed and what it still waits for. One move at a time."""

    def __init__(self) -> None:
        self._packed: dict[int, list[Chunk]] = {}  # by target
        self._expected: dict[int, list[Chunk]] = {}  # by source, what has come so far
        self._arrived: set[int] = set()  # sources, all of whose chunks were unpacked
        self._names: dict[int, str] = {}  # of the sources

    @property
    def is_complete(self) -> bool:
        """Whether everything that is this server's own is here."""
        return not self._expected

    @property
    def waits_for(self) -> list[str]:
        """The servers from which something is still to come."""
        return [self._names[number] for number in sorted(self._expected)]

    @property
    def is_over(self) -> bool:
        """Whether nothing of a move is left to do, so that the next may begin."""
        return not self._expected and not self._packed

    def begin(self, old: Roster, new: Roster, name: str, shard: Shard, workers: dict[str, int]) -> None:
        """[1] Pack what leaves and expect what comes."""
        self._arrived = set()
        self._names = {number: seat.name for number, seat in enumerate(old.servers)}
        for move in moves(old, new):
            if old.servers[move.source].name == name:
                ranges = {n: dense_move(dense.spec.size, old, new, move) for n, dense in shard.dense.items()}
                self._packed[move.target] = to_chunks(shard.cut(slot_mask(move.slots), ranges, workers))
            if new.servers[move.target].name == name:
                self._expected[move.source] = []
        shard.follow(new, new.number(name))

    def fetch(self, fetch: Fetch) -> tuple[ChunkReply, list[Frame]]:
        """[2] Return a chunk, as a message."""
        chunks = self._packed.get(fetch.target)
        if chunks is None or fetch.number >= len(chunks):
            raise Malformed(f"there is no chunk {fetch.number} for server number {fetch.target}")
        chunk = chunks[fetch.number]
        if chunk.part is None:
            return ChunkReply(fetch.id, chunk.last), [chunk.manifest]
        part, frames = pack_part(chunk.part)
        return ChunkReply(fetch.id, chunk.last, chunk.table, part), frames

    def deliver(self, deliver: Deliver, frames: Frames) -> ShardTransfer | None:
        """[3] Take a chunk; the whole transfer of its source with the last one. Repeats change nothing."""
        source, chunks = deliver.source, self._expected.get(deliver.source)
        if chunks is None:
            if source in self._arrived:
                return None
            raise Malformed(f"nothing is expected of server number {source}")
        if deliver.number < len(chunks):
            return None
        if deliver.number > len(chunks):
            raise Malformed(f"chunk {deliver.number} of server number {source} came before chunk {len(chunks)}")
        chunk = _read(deliver, frames)
        frames.end()
        if not chunk.last:
            chunks.append(chunk)
            return None
        return from_chunks([*chunks, chunk])

    def arrived(self, source: int) -> None:
        """Note that the transfer of `source` is in the shard."""
        del self._expected[source]
        self._arrived.add(source)

    def forget(self, target: int) -> None:
        """[4] Forget what `target` has got."""
        self._packed.pop(target, None)


def _read(deliver: Deliver, frames: Frames) -> Chunk:
    if deliver.number == 0:
        return Chunk(deliver.last, manifest=bytes(frames.take()))
    if deliver.part is None:
        raise Malformed(f"chunk {deliver.number} is empty")
    return Chunk(deliver.last, table=deliver.table, part=unpack_part(deliver.part, frames))


# --- the side of the process that leads the servers from one roster to the next ---------------------------------------


class MoveRequest(NamedTuple):
    peer: str
    header: Prepare | Switch | Fetch | Deliver | ForgetMoved
    frames: list[Frame]


Answered = tuple[Struct, list[memoryview]]


def rebalance(old: Roster, new: Roster) -> Generator[MoveRequest, Answered, int]:
    """Yield what to ask, take the answers, return the bytes that were moved. May be run again after it broke off."""
    ids = iter(range(1, 2**62))
    names = dict.fromkeys(seat.name for seat in (*old.servers, *new.servers))
    for name in names:  # [0]
        _agreed(name, (yield MoveRequest(name, Prepare(next(ids), new), [])))
    for name in names:  # [1]
        _agreed(name, (yield MoveRequest(name, Switch(next(ids), new), [])))
    moved_bytes = 0
    for move in moves(old, new):
        source, target = old.servers[move.source].name, new.servers[move.target].name
        number, last = 0, False
        while not last:
            answer = yield MoveRequest(source, Fetch(next(ids), new.epoch, move.target, number), [])  # [2]
            chunk, frames = answer
            if not isinstance(chunk, ChunkReply):
                if number == 0 and isinstance(chunk, Refused) and chunk.code == "bad_request":
                    break  # a former run has moved this already
                raise PeerLost(f"server {source} refused to hand over: {getattr(chunk, 'text', chunk)}")
            last = chunk.last
            deliver = Deliver(next(ids), new.epoch, move.source, number, last, chunk.table, chunk.part)
            _agreed(target, (yield MoveRequest(target, deliver, list(frames))))  # [3]
            moved_bytes += sum(frame.nbytes for frame in frames)
            number += 1
        _agreed(source, (yield MoveRequest(source, ForgetMoved(next(ids), new.epoch, move.target), [])))  # [4]
    return moved_bytes


def _agreed(name: str, answer: Answered) -> None:
    if not isinstance(answer[0], Agreed):
        raise PeerLost(f"server {name} does not follow the new roster: {getattr(answer[0], 'text', answer[0])}")
