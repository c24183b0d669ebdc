"""`heterps server` as processes, and its other commands in this one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import preloaded
import pytest

from heterps.cli import main


@contextmanager
def started(job: Path, addresses: list[str], told: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """One server, which says `told` once it listens, and must end in peace."""
    words = ["server", "start", str(job), *options, *(word for address in addresses for word in ("--address", address))]
    code = f"from heterps.cli import main; main({words!r})"
    with preloaded.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{told}\n"
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code of a server command, what it said, and what it said of errors."""
    with pytest.raises(SystemExit) as end:
        main(["server", *words])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def told_stats(capsys: pytest.CaptureFixture[str], address: str, *words: str) -> dict[str, Any]:
    code, out, _ = run_command(capsys, "stats", address, "--json", *words)
    assert code == 0
    stats: dict[str, Any] = json.loads(out)
    return stats
