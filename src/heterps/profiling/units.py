"""Two units of this machine as two processes that run a layer at once, to fit alpha and beta.

                 alone                              together                      both, on a batch each
    unit 1   [whole batch][whole batch]...      [half][half][half]...         [whole batch][whole batch]...
    unit 2                                      [half][half][half]...         [whole batch][whole batch]...
                 T(1)                               T(2) = the slower of both     T(1) * contention

Half a batch on one unit would not show contention between the units: memory bandwidth, shared caches, clock. The same
holds for communication: each unit moves the bytes of its part through memory that both share, alone and at once.

Each process builds the model from its source.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

from heterps.errors import PeerLost
from heterps.processes import Child
from heterps.profiling.source import ModelSource
from heterps.profiling.timing import summarize

NUM_UNITS = 2
START_S = 180.0
"""Seconds to wait until a process has imported torch, compiled kernels and built the model."""
ANSWER_S = 120.0
"""Seconds to wait for an answer, beyond those of the measurement itself."""
ROUNDS = 3
SHORTEST_S = 1e-9
"""Least seconds that a run counts as: the processor clock may not advance during a very short one."""
HEAD_START_S = 0.01
"""Seconds between a command and its common start: enough to reach both processes."""


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Ratio(NamedTuple):
    """The median of a ratio over all rounds, and its relative standard error."""

    value: float
    error: float


class Units:
    """The processes, which go through the layers of a profile: `enter` each layer in order, then measure it."""

    def __init__(self, source: ModelSource) -> None:
        """Start the processes; raises PeerLost if one cannot build the model."""
        from heterps.profiling.unit import BLOCK_BYTES

        self._layer = ""
        self._alone_s = self._both_s = 0.0  # of all layers so far
        self._processes: list[Child] = []
        with ExitStack() as opened:  # closes all again where something fails on the way
            shared = opened.enter_context(tempfile.TemporaryFile())  # without a name: nobody has to delete it
            shared.truncate((1 + NUM_UNITS) * BLOCK_BYTES)
            for index in range(NUM_UNITS):
                process = Child(f"unit {index + 1} of {NUM_UNITS}", "heterps.profiling.unit", [shared.fileno()])
                opened.callback(process.close)
                self._processes.append(process)
                process.send({"source": source.to_json(), "shared": shared.fileno(), "index": index})
            for process in self._processes:
                _answer(process, START_S, "makes the model")
            self._opened = opened.pop_all()

    def enter(self, layer: str) -> None:
        """Advance to the next layer, which must have this name."""
        self._layer = layer
        for answer in self._ask(self._processes, {"do": "next"}, ANSWER_S):
            assert answer["layer"] == layer, "processes that go through other layers than we do"

    def compute(self, seconds: float) -> Ratio:
        """Return the seconds of the slower of two units on half a batch each, over those of one on the whole batch."""
        whole, half = {"do": "compute", "part": 0}, {"do": "compute", "part": 1}
        alone_s, ratio, both = self._rounds(whole, half, seconds, with_both=True)
        self._alone_s += alone_s
        self._both_s += alone_s * both.value
        return ratio

    def move(self, num_bytes: Sequence[int], seconds: float) -> Ratio:
        """Return the seconds to move the bytes of half a batch on both units at once, over those of all bytes alone."""
        whole, half = ({"do": "move", "num_bytes": size} for size in num_bytes)
        _, ratio, _ = self._rounds(whole, half, seconds)
        return ratio

    @property
    def contention(self) -> float | None:
        """Seconds of all layers while both units compute, over those of one unit alone; None if there are none."""
        return max(self._both_s / self._alone_s, 1.0) if self._alone_s > 0 else None

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rounds(
        self, whole: Mapping[str, Any], half: Mapping[str, Any], seconds: float, *, with_both: bool = False
    ) -> tuple[float, Ratio, Ratio]:
        """Return the seconds of the whole batch alone, and the ratios to it of half a batch and of a batch each.

        Ratios are taken within a round and their median over all rounds: a slow moment of the machine is in both parts
        of a ratio, and a round with a slow moment in one part is left out.
        """
        each_s = seconds / ROUNDS / (3 if with_both else 2)
        alone, together, both = [], [], []
        for _ in range(ROUNDS):
            alone_s = max(self._time(self._processes[:1], whole, each_s), SHORTEST_S)
            alone.append(alone_s)
            together.append(self._time(self._processes, half, each_s) / alone_s)
            both.append(self._time(self._processes, whole, each_s) / alone_s if with_both else 1.0)
        return statistics.median(alone), _ratio(together), _ratio(both)

    def _time(self, processes: Sequence[Child], command: Mapping[str, Any], seconds: float) -> float:
        timed = {**command, "at": time.monotonic() + HEAD_START_S, "seconds": seconds}
        answers = self._ask(processes, timed, seconds + ANSWER_S)
        return max(float(answer["run_s"]) for answer in answers)

    def _ask(self, processes: Sequence[Child], command: Mapping[str, Any], deadline_s: float) -> list[dict[str, Any]]:
        for process in processes:
            process.send(command)
        return [_answer(process, deadline_s, f"measures {self._layer}") for process in processes]


def _ratio(values: Sequence[float]) -> Ratio:
    found = summarize(values)
    return Ratio(found.median_s, found.error)


def _answer(process: Child, deadline_s: float, doing: str) -> dict[str, Any]:
    try:
        return process.answer(deadline_s, doing)
    except PeerLost as error:
        raise PeerLost(
            f"{error}. Fit alpha and beta from parts of the batch in this process instead: --units parts."
        ) from None
