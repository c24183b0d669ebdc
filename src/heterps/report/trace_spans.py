"""What the trace of a policy says of each worker: from the go-ahead to the push it works, then it waits.

released  lane-0  3.10   -->   lane-0   |== step 7 ==|wait|== step 8 ==|
pushed    lane-0  3.52         lane-1   |==== step 6 ====|== step 7 ==|
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from heterps.sync.policy import Event

STEP, DROPPED, WAIT = "step", "dropped", "wait"
"""Kinds of spans: a step, a step whose push came too late for its round, and a wait for the policy."""


class TraceSpan(NamedTuple):
    """What a worker did from `start` to the time of `event`, which ended it."""

    kind: str
    start: float
    event: Event


def trace_spans(workers: Iterable[str], begin: float, events: Iterable[Event]) -> Iterator[TraceSpan]:
    """The spans of a policy's workers, in the order of their ends. The initial `workers` start their first step at
    `begin`. A worker that has left, one that has joined, and one whose go-ahead is not among the events begin anew with
    their next go-ahead.
    """
    since: dict[str, tuple[str, float]] = dict.fromkeys(workers, (STEP, begin))
    for event in events:
        doing, start = since.get(event.worker, ("", event.now))
        if event.kind in ("pushed", "dropped"):
            if doing == STEP:
                yield TraceSpan(STEP if event.kind == "pushed" else DROPPED, start, event)
            since[event.worker] = WAIT, event.now
        elif event.kind == "released":
            if doing == WAIT and event.now > start:
                yield TraceSpan(WAIT, start, event)
            since[event.worker] = STEP, event.now
        elif event.kind == "left":
            since.pop(event.worker, None)
