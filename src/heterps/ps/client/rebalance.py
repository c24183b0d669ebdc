"""Rebalance: lead the servers from one roster to the next, question by question (see handover.py for the steps).

It is a generator of questions, so that a command runs it over sockets and a test on a simulated network.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from heterps.errors import PeerLost
from heterps.ps.client.ask import ask
from heterps.ps.protocol import messages as m
from heterps.ps.protocol.roster import Roster, moves
from heterps.wire import Channel, Frame


class Question(NamedTuple):
    peer: str
    header: m.ToServer
    frames: list[Frame]


Answer = tuple[m.FromServer, list[memoryview]]


def rebalance(old: Roster, new: Roster) -> Generator[Question, Answer, int]:
    """Yields what to ask, takes the answers, returns the bytes that were moved. May be run again after it broke off."""
    ids = iter(range(1, 2**62))
    names = dict.fromkeys(seat.name for seat in (*old.servers, *new.servers))
    for name in names:  # [0]
        _agreed(name, (yield Question(name, m.Prepare(next(ids), new), [])))
    for name in names:  # [1]
        _agreed(name, (yield Question(name, m.Switch(next(ids), new), [])))
    moved_bytes = 0
    for move in moves(old, new):
        source, target = old.servers[move.source].name, new.servers[move.target].name
        number, last = 0, False
        while not last:
            answer = yield Question(source, m.Fetch(next(ids), new.epoch, move.target, number), [])  # [2]
            chunk, frames = answer
            if not isinstance(chunk, m.ChunkReply):
                if number == 0 and isinstance(chunk, m.Refused) and chunk.code == "bad_request":
                    break  # a former run has moved this already
                raise PeerLost(f"server {source} refused to hand over: {getattr(chunk, 'text', chunk)}")
            last = chunk.last
            deliver = m.Deliver(next(ids), new.epoch, move.source, number, last, chunk.table, chunk.part)
            _agreed(target, (yield Question(target, deliver, list(frames))))  # [3]
            moved_bytes += sum(frame.nbytes for frame in frames)
            number += 1
        _agreed(source, (yield Question(source, m.Forget(next(ids), new.epoch, move.target), [])))  # [4]
    return moved_bytes


def run_rebalance(channel: Channel, old: Roster, new: Roster, deadline_s: float = 60.0) -> int:
    """Rebalance over `channel`, which reaches the servers of both rosters; the bytes that were moved."""
    steps = rebalance(old, new)
    try:
        question = next(steps)
        while True:
            question = steps.send(ask(channel, question.peer, question.header, question.frames, deadline_s))
    except StopIteration as end:
        moved_bytes: int = end.value
        return moved_bytes


def _agreed(name: str, answer: Answer) -> None:
    if not isinstance(answer[0], m.Agreed):
        raise PeerLost(f"server {name} does not follow the new roster: {getattr(answer[0], 'text', answer[0])}")
