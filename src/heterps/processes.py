"""Child processes that answer lines of JSON with lines of JSON, and end when their input ends.

    {"command": ...}  -->  stdin        nothing is pickled: a child rebuilds what it needs from files
    {"answer": ...}   <--  stdout       an answer {"error": text} reports a failure in the child
                           stderr  -->  a file with everything that user code prints; if a child ends without an
                                        answer, the last line of this file is given as the reason

Every wait has a deadline, after which the child is killed; the error names the child. `close` leaves nothing running,
and a child whose parent is gone ends by itself.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import IO, Any, TextIO

from heterps.errors import PeerLost

STOP_S = 5.0
"""Seconds to wait until a killed process is gone."""
ORPHAN_S = 5.0
"""Seconds for which a process may go on after its input has ended."""
DISMISSED = "dismissed"
"""The last word to a child that should not wait for another parent."""
LOG_TAIL_BYTES = 64 * 1024
"""Size of the end of the log in which the last line is looked for."""


class ChildFailed(PeerLost):
    """A child process reported an error; `kind` is the name of the error's class."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Child:
    """A child process that runs `python -m module`. Errors call it `name`; it inherits the descriptors `pass_fds`.

    log  file to which its standard error is appended; `close` deletes it if it is empty
    """

    def __init__(self, name: str, module: str, pass_fds: Sequence[int] = (), log: Path | None = None) -> None:
        self._name_and_log(name, log)
        self._rest: str | None = None  # answers that were not read, once it has ended
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C reaches the parent only; and kill() ends what user code has started
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )

    def become(self, name: str, log: Path) -> None:
        """Call it by another name, with another log: for a child that appends to the log it is sent (`append_to`)."""
        errors, before = self._errors, self.log
        self._name_and_log(name, log)
        errors.close()
        _remove_empty(before)

    def _name_and_log(self, name: str, log: Path | None) -> None:
        self.name, self.log = name, log
        self._errors = _open_log(log)
        self._errors_from = self._errors.seek(0, os.SEEK_END)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone: the answer that does not come says so
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def answer(self, deadline_s: float, doing: str) -> dict[str, Any]:
        """Return the next answer; raises PeerLost if none comes in time, ChildFailed if it is an error.

        A child that misses the deadline is killed. `doing` describes the work in error messages.
        """
        assert self._process.stdout is not None
        late: list[bool] = []

        def give_up() -> None:
            late.append(True)
            self.kill()

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
        who = f"{self.name} (process {self.pid}), which {doing},"
        if answer is not None:
            raise ChildFailed(f"{who} failed with {answer['error']}", answer.get("kind", ""))
        if late:
            why = f"did not answer within {deadline_s:g} s"
        else:
            self._process.wait(STOP_S)
            why = self.ended or "closed its output"
        raise PeerLost(f"{who} {why}")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def ended(self) -> str | None:
        """How the process ended, and why if it said so; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        by = f" ({signal.Signals(-code).name})" if code < 0 else ""
        why = self.last_answer.get("error") or self._last_error_line()
        where = f" (all it printed: {self.log})" if self.log is not None and _has_text(self.log) else ""
        return f"ended with exit code {code}{by}{f': {why}' if why else ''}{where}"

    @property
    def last_answer(self) -> dict[str, Any]:
        """The last answer of an ended process, if it was not read yet; else an empty dict."""
        assert self._process.stdout is not None
        if self._rest is None and not self._process.stdout.closed:
            self.kill()  # ends processes that it started and left behind, which could keep its output open
            self._rest = self._process.stdout.read()
        lines = (self._rest or "").splitlines(keepends=True)
        answer: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1].endswith("\n") else {}
        return answer

    @property
    def was_told_to_leave(self) -> bool:
        """Whether it ended by SIGTERM: it said so, or had not begun to work."""
        return self._process.poll() == -signal.SIGTERM or "preempted" in self.last_answer

    def dismiss(self) -> None:
        """Ask it to end, also if it would wait for another parent after the death of this one."""
        self.send({DISMISSED: True})
        self.release()

    def release(self) -> None:
        """Close its input, which asks it to end; `stop` waits for that."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self, deadline_s: float) -> None:
        """Ask it to end, and kill it after the deadline."""
        self.release()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(deadline_s)
        self.close()

    def close(self) -> None:
        """Kill it and release its files."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(STOP_S)
        self._errors.close()
        _remove_empty(self.log)

    def kill(self) -> None:
        """Kill it, from any thread; a pending `answer` raises. Call `close` afterwards."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_error_line(self) -> str:
        if self._errors.closed:
            return ""
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._errors_from, end - LOG_TAIL_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return written[-1] if written else ""


def _open_log(log: Path | None) -> IO[bytes]:
    if log is None:
        return tempfile.TemporaryFile()  # without a name: nobody has to delete it
    log.parent.mkdir(exist_ok=True)
    return log.open("a+b")


def _has_text(log: Path) -> bool:
    return log.exists() and log.stat().st_size > 0


def _remove_empty(log: Path | None) -> None:
    if log is not None and not _has_text(log):
        log.unlink(missing_ok=True)
        with suppress(OSError):  # others have written something
            log.parent.rmdir()


class Adopted:
    """A process that another one started and left behind; it has the end of a Child that this process started.

    name  in errors
    """

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self._descriptor = os.pidfd_open(pid)  # of this process, whoever has its number later
        self.last_answer: dict[str, Any] = {}
        self.was_told_to_leave = False

    @property
    def is_running(self) -> bool:
        return self._descriptor >= 0 and not select.select([self._descriptor], [], [], 0)[0]

    @property
    def ended(self) -> str | None:
        """The word for its end; None while it runs. Only a parent learns how a process ended."""
        return None if self.is_running else "ended"

    def dismiss(self) -> None:
        self.release()

    def release(self) -> None:
        """Ask it to end; `stop` waits for that."""
        self._signal(signal.SIGINT)

    def stop(self, deadline_s: float) -> None:
        """Ask it to end, and kill it after the deadline."""
        self.release()
        if self._descriptor >= 0:
            select.select([self._descriptor], [], [], deadline_s)
        self.close()

    def close(self) -> None:
        """Kill it."""
        self._signal(signal.SIGKILL)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _signal(self, number: signal.Signals) -> None:
        if self._descriptor >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)


# --- in the child ----------------------------------------------------------------------------------------------------


def reserve_stdout() -> TextIO:
    """Reserve standard output for answers and return it; what user code prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return answers


def append_to(log: str | Path) -> None:
    """Append what is printed from now on to another file than the one that this process was started with."""
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
        os.dup2(file.fileno(), 1)


def give_answer(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def watch_input(orphaned: Callable[[], None] = lambda: None) -> threading.Event:
    """Return an event that is set when the input ends, as it does with the parent.

    A process that still runs ORPHAN_S later is ended.

    orphaned  is called, and returned from, before that, if the parent died without dismissing this process
    """
    ended = threading.Event()

    def watch() -> None:
        last = ""
        while line := sys.stdin.readline():
            last = line
        if DISMISSED not in last:
            orphaned()
        ended.set()
        time.sleep(ORPHAN_S)
        os._exit(1)

    threading.Thread(target=watch, name="end of input", daemon=True).start()
    return ended
