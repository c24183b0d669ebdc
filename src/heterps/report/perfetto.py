"""The traces of a run as Perfetto (ui.perfetto.dev) and chrome://tracing read them: a track for each worker and lane.

traces/workers.jsonl     -->  track worker-1.0  |compute|communicate|wait|compute|     what each worker did

traces/stage-1.jsonl             track lane-0   |== step 7 ==|wait|== step 8 ==|       from the go-ahead to the push,
released  lane-0  3.10   -->                                                           and from the push to the
pushed    lane-0  3.52           track lane-1   |==== step 6 ====|== step 7 ==|        next go-ahead
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from heterps.errors import RunError
from heterps.report.read_run import check_is_there
from heterps.report.trace_spans import DROPPED, STEP, WAIT, trace_spans
from heterps.report.worker_times import WorkersOverTime, read_worker_file, worker_files
from heterps.sync.policy import Event
from heterps.sync.trace import read_trace

MICRO = 1e6
NAMES = {STEP: "step {}", DROPPED: "step dropped", WAIT: "wait"}


def perfetto_trace(run: Path) -> dict[str, Any]:
    """Return the traces of a run as one object to be written as JSON. Raises RunError if it has none."""
    check_is_there(run)
    workers, policies = worker_files(run), sorted((run / "traces").glob("stage-*.jsonl"))
    if not workers and not policies:
        raise RunError(f"{run}: there are no traces. `heterps train` writes them, in {run / 'traces'}.")
    events: list[dict[str, Any]] = []
    for number, file in enumerate(workers):
        if (found := read_worker_file(file)) is not None:
            events += _of_workers(number, file.stem, found)
    for number, file in enumerate(policies, len(workers)):
        header, read = read_trace(file)
        events += _of_policy(number, f"{file.stem} ({header.policy.label})", header.workers, header.now, read)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_workers(process: int, title: str, found: WorkersOverTime) -> Iterator[dict[str, Any]]:
    """The tracks of the workers of one start of the run."""
    yield _name("process_name", process, 0, title)
    for track, worker in enumerate(found.workers, 1):
        yield _name("thread_name", process, track, worker.name)
        for start, end, doing in worker.segments:
            yield _span(doing, doing, process, track, start, end)


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
        name, kind, end = NAMES[span.kind].format(span.event.clock), WAIT if span.kind == WAIT else STEP, span.event.now
        args = {"clock": span.event.clock, "lead": span.event.lead}
        yield _span(name, kind, process, tracks[worker], span.start, end) | {"args": args}


def _name(kind: str, process: int, track: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": text}}


def _span(name: str, kind: str, process: int, track: int, start: float, end: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": process,
        "tid": track,
        "ts": round(start * MICRO, 3),
        "dur": round((end - start) * MICRO, 3),
    }
