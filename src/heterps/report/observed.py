"""The policies of a run as its traces tell of them, in the form of a simulation's result: the same charts show both.

traces/stage-1.jsonl ----\\   [1] the newest trace of each set of stages; of a long one its end
traces/stage-2.1.jsonl ---+-> [2] a lane starts when the policies of all stages let it: the latest of its go-aheads
                              [3] steps and waits of each worker, and how many updates of others each step missed
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterps.report.trace_spans import DROPPED, WAIT, TraceSpan, trace_spans
from heterps.sim.result import COMPUTE, Segment, SimResult, WorkerResult
from heterps.sim.result import WAIT as WAITS
from heterps.sync.policy import Event
from heterps.sync.trace import TraceHeader, read_trace

MOST_BYTES = 1_000_000
"""Bytes at the end of a trace that are read, of about 5,000 steps: a report is written in a moment, however long a run
was."""


@dataclass(frozen=True)
class ObservedPolicy:
    """What one policy of a run did. `title` names its stages; `is_whole`: whether all of its trace was read."""

    title: str
    result: SimResult
    is_whole: bool
    has_rounds: bool
    """Whether gradients are applied together at the end of a round, so that none is stale."""


Trace = tuple[str, TraceHeader, list[Event], bool]  # title, header, events, whether it is whole


def read_observed(run: Path, most_bytes: int = MOST_BYTES) -> list[ObservedPolicy]:
    """Read the policies of the run's last start [1]; none where it has no traces. Raises RunError for a damaged one."""
    newest: dict[str, tuple[int, Path]] = {}
    for path in (run / "traces").glob("stage-*.jsonl"):
        if match := re.fullmatch(r"stage-([\d-]+)(?:\.(\d+))?", path.stem):
            number = int(match[2] or 0)
            newest[match[1]] = max(newest.get(match[1], (-1, path)), (number, path))
    last = max((number for number, _ in newest.values()), default=0)
    traces: list[Trace] = []
    for stages, (number, path) in sorted(newest.items()):
        if number == last:  # others are of an earlier plan, with other stages
            is_whole = path.stat().st_size <= most_bytes
            traces.append((_title(stages), *read_trace(path, most_bytes), is_whole))
    return observe(traces)


def observe(traces: Iterable[Trace]) -> list[ObservedPolicy]:
    """What each policy did, by traces of the same time; those without a single step are left out."""
    traces = [trace for trace in traces if trace[2]]
    started: dict[tuple[str, int], float] = {}
    for _, _, events, _ in traces:
        for event in events:
            if event.kind == "released":
                key = event.worker, event.clock
                started[key] = max(started.get(key, event.now), event.now)  # [2]
    seen = [_observe(title, header, _started(events, started), is_whole) for title, header, events, is_whole in traces]
    return [policy for policy in seen if policy.result.pushes]


def _started(events: Iterable[Event], started: dict[tuple[str, int], float]) -> list[Event]:
    return [
        event._replace(now=started[event.worker, event.clock]) if event.kind == "released" else event
        for event in events
    ]


def _observe(title: str, header: TraceHeader, events: list[Event], is_whole: bool) -> ObservedPolicy:
    begin = header.now if is_whole else events[0].now
    spans: dict[str, list[TraceSpan]] = defaultdict(list)
    for span in trace_spans(header.workers if is_whole else (), begin, events):
        spans[span.event.worker].append(span)
    present = sorted(spans, key=lambda name: (len(name), name))  # lane-2 before lane-10
    end = max(event.now for event in events)
    workers = tuple(_worker(name, spans[name], events) for name in present)
    has_rounds = header.policy.in_rounds
    pushes = [event.now for event in events if event.kind == "pushed"]
    steps = [span for some in spans.values() for span in some if span.kind not in (WAIT, DROPPED)]
    stale = Counter({0: len(steps)}) if has_rounds else _staleness(steps, pushes)
    result = SimResult(
        policy=header.policy.label,
        seed=0,
        end_s=end,
        pushes=len(pushes),
        updates=len(pushes),
        dropped=sum(worker.dropped for worker in workers),
        max_lead=max((event.lead for event in events if event.kind == "released"), default=0),
        mean_staleness=sum(old * count for old, count in stale.items()) / stale.total() if stale.total() else None,
        staleness=dict(stale),
        workers=workers,
        window=(begin, end) if end > begin else None,
    )
    return ObservedPolicy(title, result, is_whole, has_rounds)


def _staleness(steps: Sequence[TraceSpan], pushes: Sequence[float]) -> Counter[int]:
    """How many steps missed how many updates of others: pushes between their start and their own [3]."""
    return Counter(
        max(0, bisect_right(pushes, step.event.now) - 1 - bisect_right(pushes, step.start)) for step in steps
    )


def _worker(name: str, spans: list[TraceSpan], events: list[Event]) -> WorkerResult:
    steps = [span for span in spans if span.kind != WAIT]
    waits = [span for span in spans if span.kind == WAIT]
    last = next(event for event in reversed(events) if event.worker == name)
    compute_s = sum(span.event.now - span.start for span in steps)
    return WorkerResult(
        name=name,
        seconds=compute_s / len(steps) if steps else 0.0,
        pushes=len(steps),
        waits=len(waits),
        compute_s=compute_s,
        push_s=0.0,
        wait_s=sum(span.event.now - span.start for span in waits),
        dropped=sum(span.kind == DROPPED for span in spans),
        joined_s=spans[0].start,
        left_s=last.now if last.kind == "left" else None,
        segments=tuple(Segment(s.start, s.event.now, WAITS if s.kind == WAIT else COMPUTE) for s in spans),
    )


def _title(stages: str) -> str:
    numbers = stages.split("-")
    return f"Stage {numbers[0]}" if len(numbers) == 1 else f"Stages {', '.join(numbers[:-1])} and {numbers[-1]}"
