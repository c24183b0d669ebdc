"""Two units of this machine, as two processes that run a layer at once: what alpha and beta are fitted from.

                 alone                              together
    unit 1   [whole batch][whole batch]...      [half][half][half]...
    unit 2                                      [half][half][half]...
                 T(1)                               T(2) = the slower of both

Half a batch alone would not tell what the units take from each other: memory bandwidth, shared caches, clock. The same
goes for communication: each unit moves the bytes of its part through memory that both share, alone and at once.

Nothing of the user's is pickled: each process makes the model from its source. Every wait has a deadline that ends the
process waited for, and its error names it. `close` leaves nothing running.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Timer
from types import TracebackType
from typing import Any, Self

from heterps.errors import PeerLost
from heterps.profiling.source import Source

NUM_UNITS = 2
START_S = 180.0
"""To import torch, compile kernels that no run has compiled yet, and make the model."""
ANSWER_S = 120.0
"""For an answer, beyond the seconds that a measurement was given."""
STOP_S = 5.0
"""For a process that was ended to be gone."""
ROUNDS = 3
HEAD_START_S = 0.01
"""Between a command and its common start: enough to reach both processes."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Units:
    """The processes, in step with the layers of a profile: `enter` each in order, then measure."""

    def __init__(self, source: Source) -> None:
        """Starts the processes; raises PeerLost where one cannot make the model."""
        from heterps.profiling.unit import BLOCK_BYTES

        self._layer = ""
        self._processes: list[_Process] = []
        with ExitStack() as opened:  # closes all again where something fails on the way
            shared = opened.enter_context(tempfile.TemporaryFile())  # without a name: nobody has to delete it
            shared.truncate((1 + NUM_UNITS) * BLOCK_BYTES)
            for index in range(NUM_UNITS):
                process = _Process(index, shared.fileno())
                opened.callback(process.close)
                self._processes.append(process)
                process.send({"source": source.to_json(), "shared": shared.fileno(), "index": index})
            for process in self._processes:
                process.answer(START_S, "makes the model")
            self._opened = opened.pop_all()

    def enter(self, layer: str) -> None:
        """Go on to the next layer, which is this one."""
        self._layer = layer
        for answer in self._ask(self._processes, {"do": "next"}, ANSWER_S):
            assert answer["layer"] == layer, "processes that go through other layers than we do"

    def compute(self, seconds: float) -> tuple[float, float]:
        """Seconds of one step: of one unit alone on the whole batch, and of the slower of two on half a batch each."""
        return self._alone_and_together({"do": "compute", "part": 0}, {"do": "compute", "part": 1}, seconds)

    def move(self, num_bytes: Sequence[int], seconds: float) -> tuple[float, float]:
        """Seconds to move the bytes of the whole batch alone, and of half a batch while the other unit does so too."""
        whole, half = num_bytes
        return self._alone_and_together({"do": "move", "num_bytes": whole}, {"do": "move", "num_bytes": half}, seconds)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _alone_and_together(
        self, whole: Mapping[str, Any], half: Mapping[str, Any], seconds: float
    ) -> tuple[float, float]:
        """The best of rounds that take turns, so that a slow moment of the machine falls on both alike."""
        each_s = seconds / ROUNDS / 2
        rounds = [
            (self._time(self._processes[:1], whole, each_s), self._time(self._processes, half, each_s))
            for _ in range(ROUNDS)
        ]
        alone, together = zip(*rounds, strict=True)
        return min(alone), min(together)

    def _time(self, processes: Sequence[_Process], command: Mapping[str, Any], seconds: float) -> float:
        timed = {**command, "at": time.monotonic() + HEAD_START_S, "seconds": seconds}
        answers = self._ask(processes, timed, seconds + ANSWER_S)
        return max(float(answer["run_s"]) for answer in answers)

    def _ask(
        self, processes: Sequence[_Process], command: Mapping[str, Any], deadline_s: float
    ) -> list[dict[str, Any]]:
        for process in processes:
            process.send(command)
        return [process.answer(deadline_s, f"measures {self._layer}") for process in processes]


class _Process:
    """One unit's process, and the lines of JSON to and from it."""

    def __init__(self, index: int, shared: int) -> None:
        """`shared` is a file descriptor that the process gets too."""
        self.index = index
        self._process = subprocess.Popen(
            [sys.executable, "-m", "heterps.profiling.unit"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            pass_fds=[shared],
            start_new_session=True,  # a group of its own, to end what the model's code may have started as well
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )

    def send(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone: the answer that does not come says so
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def answer(self, deadline_s: float, doing: str) -> dict[str, Any]:
        """The next answer; raises PeerLost where none comes in time: the process is ended then."""
        assert self._process.stdout is not None
        late: list[bool] = []

        def give_up() -> None:
            late.append(True)
            self._kill()

        timer = Timer(deadline_s, give_up)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
            timer.join()
        answer: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
        if answer is not None and "error" not in answer:
            return answer
        if answer is not None:
            why = f"failed with {answer['error']}"
        elif late:
            why = f"did not answer within {deadline_s:g} s"
        else:
            why = f"ended with exit code {self._process.wait(STOP_S)}"
        raise PeerLost(
            f"unit {self.index + 1} of {NUM_UNITS} (process {self._process.pid}), which {doing}, {why}. "
            "Fit alpha and beta from parts of the batch in this process instead: --units parts."
        )

    def close(self) -> None:
        """Ends it at once: it holds nothing that anybody needs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(STOP_S)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
