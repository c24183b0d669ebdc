"""A worker process in reserve: it has imported everything and waits for its start, so that a lost worker's place is
taken in a second, not in the many that an import of torch takes on a busy machine.

A run that lasts has one, from AFTER_S on; a short run never pays for it. It becomes the next worker that is needed, and
another one starts AFTER_S later.
"""

from __future__ import annotations

import time
from pathlib import Path

from heterps.processes import Child

AFTER_S = 60.0
"""Seconds of a run, or since the last was taken, after which a process is held in reserve."""
MODULE = "heterps.launch.worker_process"


class Standby:
    """Gives the worker processes of a run, with `logs` as the folder of what they print; one is held in reserve."""

    def __init__(self, logs: Path, *, is_wanted: bool) -> None:
        self._logs, self._is_wanted = logs, is_wanted
        self._child: Child | None = None
        self._since = time.monotonic()

    def tend(self) -> None:
        """Start the process in reserve when it is time; to be called often. One that ends is not started again."""
        if self._child is not None and not self._child.is_running:
            self._is_wanted = False
            self.close()
        if self._is_wanted and self._child is None and time.monotonic() - self._since >= AFTER_S:
            self._child = Child("the worker in reserve", MODULE, log=self._logs / "reserve.log")

    def take(self, name: str) -> Child:
        """Return a process for worker `name`: the one in reserve, or else a new one."""
        log, child, self._child = self._logs / f"{name}.log", self._child, None
        if child is None:
            return Child(name, MODULE, log=log)
        self._since = time.monotonic()
        child.become(name, log)
        return child

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
