"""Traces of a run: what the policies of its stages decide, for whoever wants to know why, or to replay it.

traces/stage-1.jsonl      of stage 1; stage-1-2.jsonl of stages 1 and 2 that are kept in step together
traces/stage-1.1.jsonl    the same after the run went on from a checkpoint for the first time
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from heterps.sync import Policy, record
from heterps.training.protocol.stage_tables import Stages

MOST_INPUTS = 250_000
"""A trace ends after this many inputs, about 50 MB: a run may go on for weeks."""


class Traces:
    """The traces in the folder of a run; their files are closed with `opened`.

    Training does not depend on them: where one cannot be written, as on a full disk, `warn` is told and it ends there.
    """

    def __init__(self, run_folder: Path, opened: ExitStack, warn: Callable[[str], None]) -> None:
        self._folder, self._opened, self._warn = run_folder / "traces", opened, warn

    def record(self, group: Stages, policy: Policy) -> None:
        """Write down what a policy of these stages, counted from 0, decides from now on."""
        name = "stage-" + "-".join(str(stage + 1) for stage in group)
        number = sum(1 for _ in self._folder.glob(f"{name}.*jsonl"))
        trace = _Trace(self._folder / (f"{name}.jsonl" if not number else f"{name}.{number}.jsonl"), self._warn)
        self._opened.callback(trace.close)
        record(policy, trace, MOST_INPUTS)


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
