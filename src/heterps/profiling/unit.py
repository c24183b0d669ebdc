"""One profiling unit as a process: `python -m heterps.profiling.unit`, started by `heterps.profiling.units`.

It builds the model and the batch from their source, goes through the layers in step with the other units, and times its
part of each on command. Each input line is a command in JSON, each output line its answer; it ends with its input.

    {"source": ..., "shared": descriptor, "index": 0}            --> {}                     model and batch are ready
    {"do": "next"}                                         --> {"layer": "fc1"}       the next layer is ready
    {"do": "compute", "part": 1, "at": 12.5, "seconds": 1} --> {"run_s": 0.004}       steps from 12.5 on the clock that
    {"do": "move", "num_bytes": 4096, "at": ...}           --> {"run_s": 0.001}       all processes of a machine share
    anything that fails                                    --> {"error": "..."}
"""

from __future__ import annotations

import json
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from heterps.config import Optimizers
from heterps.model.stages import StageModule, Values, split
from heterps.model.trace import trace
from heterps.processes import give_answer, reserve_stdout
from heterps.profiling.batches import batch_size_of, divide
from heterps.profiling.sandbox import Sandbox
from heterps.profiling.source import ModelSource
from heterps.profiling.timing import LEAST_RUNS

BLOCK_BYTES = 8 * 2**20
"""Size of a block of the shared memory: one that all units read, and one for each unit to write."""


def main() -> None:
    commands, answers = sys.stdin, reserve_stdout()
    torch.set_num_threads(1)
    try:
        start = json.loads(commands.readline())
        unit = Unit(ModelSource.from_json(start["source"]), start["shared"], start["index"])
        give_answer(answers, {})
        for line in commands:
            give_answer(answers, unit.do(json.loads(line)))
    except Exception as error:  # from the model's own code, or out of memory: reported to the parent
        give_answer(answers, {"error": f"{type(error).__name__}: {error}"})


class Unit:
    """Runs a unit's share of every layer: the whole batch (part 0) when alone, half of it (part 1) when not."""

    def __init__(self, source: ModelSource, shared: int, index: int) -> None:
        model, inputs = source.build()
        traced = trace(model)
        self._parts: list[Values] = list(divide(traced, inputs, batch_size_of(inputs), (1, 2)).values())
        self._layers = iter(zip(traced.layers, split(traced, range(1, len(traced.layers))), strict=True))
        self._optimizers, self._precision = source.job.optimizers, source.job.precision
        self._steps: list[Callable[[], object]] = []
        self._transport = _Transport(shared, index)

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == "next":
            layer, stage = next(self._layers)
            self._enter(stage, self._optimizers)
            return {"layer": layer.name}
        work: Callable[[], object]
        if command["do"] == "compute":
            work = self._steps[command["part"]]
        else:
            work = self._transport.work(command["num_bytes"])
        return {"run_s": _run_s(work, command["at"], command["seconds"])}

    def _enter(self, stage: StageModule, optimizers: Optimizers) -> None:
        sandbox = Sandbox(stage, torch.device("cpu"), optimizers, self._precision)
        self._steps = [sandbox.step(values) for values in self._parts]
        for step in self._steps:
            step()  # compilation, caches: not timed
        self._parts = [sandbox.forward(values) for values in self._parts]


class _Transport:
    """Memory that all units map, through which parameters travel between workers and servers on one machine."""

    def __init__(self, descriptor: int, index: int) -> None:
        self._shared = memoryview(mmap.mmap(descriptor, 0))
        self._write_at = (1 + index) * BLOCK_BYTES
        self._own = memoryview(bytearray(BLOCK_BYTES))

    def work(self, num_bytes: int) -> Callable[[], None]:
        """Return a function that moves `num_bytes`: half in, from the common block, and half out, to its own block."""
        half = max(num_bytes // 2, 1)

        def move() -> None:
            for size in _blocks(half):
                self._own[:size] = self._shared[:size]
            for size in _blocks(half):
                self._shared[self._write_at : self._write_at + size] = self._own[:size]

        return move


def _blocks(num_bytes: int) -> Iterator[int]:
    whole, rest = divmod(num_bytes, BLOCK_BYTES)
    yield from [BLOCK_BYTES] * whole
    if rest:
        yield rest


def _run_s(work: Callable[[], object], at: float, seconds: float) -> float:
    """Run `work` back to back from `at` for `seconds`, at least three times, and return the seconds of one run.

    All units begin at the same moment and keep running, so that each run of one overlaps runs of the others. Processor
    time is measured: waiting for memory or a shared cache counts, being preempted by another program does not. Such a
    program leaves cold caches, which slow down some runs, so the lower quartile is taken. Contention between the units
    affects every run.
    """
    while time.monotonic() < at:
        pass  # a sleep would wake too late
    times: list[float] = []
    while len(times) < LEAST_RUNS or time.monotonic() < at + seconds:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.quantiles(times, n=4, method="inclusive")[0]


if __name__ == "__main__":
    main()
