"""Traces of a run: what the policies of its stages decide, for whoever wants to know why, or to replay it.

traces/stage-1.jsonl      of stage 1; stage-1-2.jsonl of stages 1 and 2 that are kept in step together
traces/stage-1.1.jsonl    the same after the run went on from a checkpoint for the first time
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from heterps.sync import Policy, record
from heterps.training.stage_tables import Stages

MOST_INPUTS = 250_000
"""Of a trace, some 50 MB: a run may go on for weeks."""


class Traces:
    """In the folder of a run; files are closed with `opened`."""

    def __init__(self, run_folder: Path, opened: ExitStack) -> None:
        self._folder, self._opened = run_folder / "traces", opened

    def record(self, group: Stages, policy: Policy) -> None:
        """Write down what a policy of these stages, counted from 0, decides from now on."""
        self._folder.mkdir(exist_ok=True)
        name = "stage-" + "-".join(str(stage + 1) for stage in group)
        number = sum(1 for _ in self._folder.glob(f"{name}.*jsonl"))
        path = self._folder / (f"{name}.jsonl" if not number else f"{name}.{number}.jsonl")
        file: TextIO = self._opened.enter_context(path.open("w", encoding="utf-8"))
        record(policy, file, MOST_INPUTS)
