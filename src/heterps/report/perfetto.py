"""The traces of a run as Perfetto (ui.perfetto.dev) and chrome://tracing read them: a track for each lane.

traces/stage-1.jsonl             track lane-0   |== step 7 ==|wait|== step 8 ==|       from the go-ahead to the push,
released  lane-0  3.10   -->                                                           and from the push to the
pushed    lane-0  3.52           track lane-1   |==== step 6 ====|== step 7 ==|        next go-ahead
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from heterps.errors import RunError
from heterps.report.trace_spans import DROPPED, STEP, WAIT, trace_spans
from heterps.sync.policy import Event
from heterps.sync.trace import read_trace

MICRO = 1e6
NAMES = {STEP: "step {}", DROPPED: "step dropped", WAIT: "wait"}


def perfetto_trace(run: Path) -> dict[str, Any]:
    """Return the traces of a run as one object to be written as JSON. Raises RunError if it has none."""
    files = sorted((run / "traces").glob("*.jsonl"))
    if not files:
        raise RunError(
            f"{run}: there are no traces. `heterps train --launcher local` and `ray` write them, in {run / 'traces'}; "
            "an inline run has one worker, which never waits."
        )
    events: list[dict[str, Any]] = []
    for number, file in enumerate(files):
        header, read = read_trace(file)
        events += _of_policy(number, f"{file.stem} ({header.policy.label})", header.workers, header.now, read)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_policy(
    process: int, title: str, workers: Iterable[str], begin: float, events: Iterable[Event]
) -> Iterator[dict[str, Any]]:
    """The tracks of one policy: a track for each worker, named where its first span is."""
    yield _name("process_name", process, 0, title)
    tracks: dict[str, int] = {}
    for span in trace_spans(workers, begin, events):
        worker = span.event.worker
        if worker not in tracks:
            tracks[worker] = len(tracks) + 1
            yield _name("thread_name", process, tracks[worker], worker)
        yield _span(NAMES[span.kind].format(span.event.clock), process, tracks[worker], span.start, span.event)


def _name(kind: str, process: int, track: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": text}}


def _span(name: str, process: int, track: int, start: float, event: Event) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": "wait" if name == "wait" else "step",
        "pid": process,
        "tid": track,
        "ts": round(start * MICRO, 3),
        "dur": round((event.now - start) * MICRO, 3),
        "args": {"clock": event.clock, "lead": event.lead},
    }
