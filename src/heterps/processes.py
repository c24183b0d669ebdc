"""Child: a process of ours that answers lines of JSON with lines of JSON, and ends when its input ends.

    {"command": ...}  -->  stdin        nothing of the user's is pickled: a child makes what it needs anew from files
    {"answer": ...}   <--  stdout       an answer {"error": text} says what went wrong there
                           stderr  -->  a file, with all that user code prints; its last line tells why a child ended
                                        that said nothing

Every wait has a deadline that ends the child, and its error names it. `close` leaves nothing running, and a child whose
parent is gone, however that happened, ends by itself.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import IO, Any, TextIO

from heterps.errors import PeerLost

STOP_S = 5.0
"""For a process that was ended to be gone."""
ORPHAN_S = 5.0
"""For a process whose input has ended to end in peace."""
LAST_WORDS_BYTES = 64 * 1024
"""Of its errors, to look for the last line in."""


class ChildFailed(PeerLost):
    """A process said what went wrong there; `kind` is the name of that error's class."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


class Child:
    """`python -m module` under the name that errors shall call it by. It gets the files `pass_fds` too.

    log  what it prints is added to this file, which is there afterwards if there is anything in it
    """

    def __init__(self, name: str, module: str, pass_fds: Sequence[int] = (), log: Path | None = None) -> None:
        self.name = name
        self.log = log
        self._errors = _open_log(log)
        self._errors_from = self._errors.seek(0, os.SEEK_END)
        self._rest: str | None = None  # of its answers, once it has ended
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C is for the parent; and a group, to end what user code may have started
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone: the answer that does not come says so
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def answer(self, deadline_s: float, doing: str) -> dict[str, Any]:
        """The next answer; PeerLost where none comes in time, ChildFailed where it is an error: the process is ended
        then."""
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
        """How the process ended, and why, as far as it said so; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        by = f" ({signal.Signals(-code).name})" if code < 0 else ""
        why = self.parting.get("error") or self._last_words()
        where = f" (all it printed: {self.log})" if self.log is not None and _has_text(self.log) else ""
        return f"ended with exit code {code}{by}{f': {why}' if why else ''}{where}"

    @property
    def parting(self) -> dict[str, Any]:
        """The last answer of a process that has ended, if nobody took it; else nothing."""
        assert self._process.stdout is not None
        if self._rest is None and not self._process.stdout.closed:
            self.kill()  # what it started and left behind: that could keep its output open
            self._rest = self._process.stdout.read()
        lines = (self._rest or "").splitlines(keepends=True)
        answer: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1].endswith("\n") else {}
        return answer

    def release(self) -> None:
        """Let it end in peace, which the end of its input asks for; `stop` waits for it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self, deadline_s: float) -> None:
        """Let it end in peace, and by force after the deadline."""
        self.release()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(deadline_s)
        self.close()

    def close(self) -> None:
        """End it at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(STOP_S)
        self._errors.close()
        if self.log is not None and not _has_text(self.log):
            self.log.unlink(missing_ok=True)
            with suppress(OSError):  # others have written something
                self.log.parent.rmdir()

    def kill(self) -> None:
        """End it at once, from any thread: whoever waits for its answer hears of it. `close` it still."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_words(self) -> str:
        if self._errors.closed:
            return ""
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._errors_from, end - LAST_WORDS_BYTES))
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


# --- in the child ----------------------------------------------------------------------------------------------------


def own_stdout() -> TextIO:
    """Standard output for answers alone: what user code prints goes to standard error, line by line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    return answers


def give_answer(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def watch_input() -> threading.Event:
    """Set when the input ends, which it does with the parent. A process that goes on for long after that is ended."""
    ended = threading.Event()

    def watch() -> None:
        while sys.stdin.readline():
            pass
        ended.set()
        time.sleep(ORPHAN_S)
        os._exit(1)

    threading.Thread(target=watch, name="end of input", daemon=True).start()
    return ended
