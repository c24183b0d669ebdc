"""What follows from rounds that ended, batches that are done and go-aheads: effects, in the order in which they count.

Pushed by all --> EndRound, or DropRound of a void one --> Note: done --> Skip --> Measured --> Note: go
              --> TellEnded --> Send
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from heterps.training.coordinator.effects import DropRound, Effect, EndRound, Note, Skip, TellEnded
from heterps.training.coordinator.flow import EndedRound, Step
from heterps.training.coordinator.journal import done_of
from heterps.training.protocol.layout import Layout
from heterps.training.protocol.messages import ALL_LANES, Send


def after_rounds(ended: Iterable[EndedRound], layout: Layout) -> list[Effect]:
    """What follows from rounds that all workers of a layout have pushed.

    Of a void round a lone worker has pushed nothing, so that there is nothing to drop. But in one that is repeated, a
    worker that died may have pushed before: DropRound fails where that was applied, for the number cannot come again.
    """
    are_several = len(layout.workers) > 1
    return [
        DropRound(round.number) if round.is_void else EndRound(round.number, are_several)
        for round in ended
        if not round.is_void or are_several or round.is_repeated
    ]


def after_steps(steps: Sequence[Step], seconds: float, *, journals: bool) -> list[Effect]:
    """What follows from batches that are done, so many seconds after the run began, before they are accounted for."""
    notes = [Note(done_of(step, seconds)) for step in steps] if journals else []
    return [*notes, *(Skip(step.skipped) for step in steps if step.skipped is not None)]


def go_aheads(messages: Sequence[tuple[str, Any]], *, journals: bool) -> list[Effect]:
    """What sends go-aheads to workers. All workers of a round are told the same, which is noted once."""
    gos = dict.fromkeys(message for _, message in messages)
    notes = [Note(go) for go in gos] if journals else []
    tells = [TellEnded()] if len(messages) > 1 and all(go.lane == ALL_LANES for go in gos) else []
    return [*notes, *tells, *(Send(worker, message) for worker, message in messages)]
