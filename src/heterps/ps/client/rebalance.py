"""Rebalance: lead the servers from one roster to the next over a channel (see ops/moves.py for the steps)."""

from __future__ import annotations

from heterps.ps.client.ask import ask
from heterps.ps.ops.moves import rebalance
from heterps.ps.protocol.roster import Roster
from heterps.wire import Channel


def run_rebalance(channel: Channel, old: Roster, new: Roster, deadline_s: float = 60.0) -> int:
    """Rebalance over `channel`, which reaches the servers of both rosters; return the bytes that were moved."""
    steps = rebalance(old, new)
    try:
        question = next(steps)
        while True:
            question = steps.send(ask(channel, question.peer, question.header, question.frames, deadline_s))
    except StopIteration as end:
        moved_bytes: int = end.value
        return moved_bytes
