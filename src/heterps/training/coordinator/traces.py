"""Traces of a run: what the policies of its stages decide, to be explained or replayed, and what
its workers did when.

traces/stage-1.jsonl      of stage 1; stage-1-2.jsonl of stages 1 and 2 that are kept in step together
traces/stage-1.1.jsonl    the same after the run went on from a checkpoint for the first time
traces/workers.jsonl      a line a push: {"worker": "worker-1.0", "start": 3.1, "did": "wmc", "us": [120, 45, 2070]}
                          it waited, communicated (m) and computed for so many microseconds, from second 3.1 on

All times are seconds of training, which stand still while nothing is trained, as during a validation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from heterps.sync import Policy, record
from heterps.training.protocol.messages import Pushed, Spans
from heterps.training.protocol.stage_tables import Stages

MOST_INPUTS = 250_000
"""A trace ends after this many inputs or lines, about 50 MB: a run may go on for weeks."""
MOST_DRIFT = 1e-4
"""Clocks of two machines are assumed to run apart by less than this many seconds a second."""


class Traces:
    """The traces in the folder of a run; their files are closed with `opened`.

    Training does not depend on them: where one cannot be written, as on a full disk, `warn` is told and it ends there.
    """

    def __init__(self, run_folder: Path, opened: ExitStack, warn: Callable[[str], None], scale: float = 1.0) -> None:
        """`scale`: real seconds, by which workers count, of a second of training."""
        self._folder, self._opened, self._warn, self._scale = run_folder / "traces", opened, warn, scale
        self._workers: _Trace | None = None  # before the first line
        self._clocks: dict[str, _WorkerClock] = {}
        self._num_lines = 0

    def record(self, group: Stages, policy: Policy) -> None:
        """Write down what a policy of these stages, counted from 0, decides from now on."""
        record(policy, self._open("stage-" + "-".join(str(stage + 1) for stage in group)), MOST_INPUTS)

    def pushed(self, message: Pushed, seconds: float) -> None:
        """Write down what a worker did before its push, which came after `seconds` of training."""
        if (spans := message.spans) is None or self._num_lines >= MOST_INPUTS:
            return
        if self._workers is None:
            self._workers = self._open("workers")
        self._num_lines += 1
        clock = self._clocks.setdefault(message.worker, _WorkerClock(self._scale))
        clock.heard(message.sent_s, seconds)
        start, lasted_us = clock.place(spans)
        line = {"worker": message.worker, "start": round(start, 6), "did": spans.doings, "us": lasted_us}
        self._workers.write(json.dumps(line) + "\n")

    def _open(self, name: str) -> _Trace:
        number = sum(1 for _ in self._folder.glob(f"{name}.*jsonl"))
        trace = _Trace(self._folder / (f"{name}.jsonl" if not number else f"{name}.{number}.jsonl"), self._warn)
        self._opened.callback(trace.close)
        return trace


class _WorkerClock:
    """Turns the clock of a worker, whose zero may be any moment, into seconds of training.

    The message that came quickest tells how far the two are apart. Where training stood still in between, what the
    worker did meanwhile, which was to wait, would begin before the end of what it did before: that part is cut off.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._offset, self._heard_s, self._end = float("inf"), 0.0, 0.0

    def heard(self, sent_s: float, seconds: float) -> None:
        """A message that was sent at `sent_s` by the worker's clock came after `seconds` of training."""
        drifted = self._offset + MOST_DRIFT * max(seconds - self._heard_s, 0.0)
        self._offset, self._heard_s = min(drifted, seconds - sent_s / self._scale), seconds

    def place(self, spans: Spans) -> tuple[float, list[int]]:
        """When the spans began, and how many microseconds each lasted, in seconds of training."""
        lasted = [us / self._scale for us in spans.lasted_us]
        start = spans.start_s / self._scale + self._offset
        if (cut_us := 1e6 * (self._end - start)) > 0:
            start = self._end
            for number, us in enumerate(lasted):
                lasted[number] = max(us - cut_us, 0.0)
                cut_us = max(cut_us - us, 0.0)
        self._end = start + sum(lasted) / 1e6
        return start, [round(us) for us in lasted]


class _Trace:
    """A file that ends, with a warning, at the first line that cannot be written."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path, self._warn = path, warn
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            self._end(error)

    def write(self, text: str) -> None:
        try:
            if self._file is not None:
                self._file.write(text)
        except OSError as error:
            self._end(error)

    def close(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what it still holds cannot be written either
                file.close()
        self._warn(f"{self._path}: this trace ends before the run: {error.strerror or error}. Training goes on.")
