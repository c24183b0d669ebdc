"""The command line as its users meet it: a process of its own, though one that is quick to start."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import preloaded

COMMAND = [sys.executable, "-c", "from heterps.cli import main; main()"]
DEADLINE_S = 120


def heterps(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return preloaded.run([*COMMAND, *words], cwd=cwd, timeout=DEADLINE_S)


def heterps_here(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which is quicker: where it does not matter that it is one of its own."""
    from heterps.cli import main

    out, errors = io.StringIO(), io.StringIO()
    before = Path.cwd()
    with redirect_stdout(out), redirect_stderr(errors):
        os.chdir(cwd)
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            return subprocess.CompletedProcess(words, int(end.code or 0), out.getvalue(), errors.getvalue())
        finally:
            os.chdir(before)
    raise AssertionError("a command ends with its exit code")


@contextmanager
def started(*words: object, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that runs, the leader of a process group. It is killed after the deadline, and at the end.

    Its output goes through a pipe of one page: whoever prints more than that waits until somebody reads it.
    """
    process = preloaded.Popen(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    deadline = threading.Timer(DEADLINE_S, process.kill)
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()
        deadline.join()


def wait_for(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read what the command prints up to a line with `text`; all lines so far."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"the command ended without printing {text!r}:\n{''.join(lines)}")


def group_is_gone(process: subprocess.Popen[str]) -> bool:
    """Whether neither the ended command nor any process that it started is left."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def processes_of(command: int, module: str) -> list[int]:
    """The processes of this module that a command has started, the oldest first."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            words = (process / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == command and module in words:
            found.append(int(process.name))
    return sorted(found)
