"""`heterps serve` as a process of its own, and those who ask it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import preloaded
import pyarrow as pa
from command import COMMAND

ARROW = "application/vnd.apache.arrow.stream"
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Served:
    """A server that takes requests."""

    process: subprocess.Popen[str]
    url: str
    version: str  # when it began
    client: httpx.Client
    log: Path  # what it printed to standard error

    def score(self, table: pa.Table) -> tuple[str, list[float | None]]:
        """Ask with Arrow for scores; returns the version and the scores."""
        answer = self.client.post("/score", content=stream(table), headers={"Content-Type": ARROW})
        assert answer.status_code == 200, answer.text
        read = pa.ipc.open_stream(answer.content).read_all()
        assert read.schema.metadata[b"version"].decode() == answer.headers["x-heterps-version"]
        return answer.headers["x-heterps-version"], read["score"].to_pylist()

    def health(self) -> dict[str, Any]:
        return dict(self.client.get("/health").json())

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the condition holds for what it says of its health, and return that."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition(health := self.health()):
            assert time.monotonic() < deadline, f"{health}\n{self.log.read_text()}"
            time.sleep(0.02)
        return health


@contextmanager
def served(*words: object, cwd: Path, **environment: str) -> Iterator[Served]:
    """Start `heterps serve WORDS` at a free port; it is killed at the end, if it has not ended by itself."""
    log = cwd / f"serve-{time.monotonic_ns()}.log"
    with log.open("w") as errors:
        process = preloaded.Popen(
            [*COMMAND, "serve", *map(str, words), "--port", "0", "--json"],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        )
    try:
        assert process.stdout is not None
        told, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
        line = process.stdout.readline() if told else ""
        assert line, f"it did not begin:\n{log.read_text()}"
        ready = json.loads(line)
        token = environment.get("HETERPS_TOKEN")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=ready["url"], timeout=DEADLINE_S, headers=headers) as client:
            yield Served(process, ready["url"], ready["version"], client, log)
    finally:
        process.kill()
        process.communicate()


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
