"""Processes that begin with heterps imported: forked by a server that has done so, where `python` takes 3 s of CPU.

    Popen, run     as those of subprocess, for commands of this interpreter: -c code, -m module, or a script

    this process ----- [1] words, folder, environment, descriptors ----> fork server: one thread, all imported
         ^                                                                   | [2] fork twice; the one between ends,
         |                                                                   v     so the child falls to the nearest
         +---- [3] its own child, by its process id <---------------- the process  subreaper: [1] made that this one

The process is in nothing different that a test could see: its parent, its descriptors, its environment and its words,
also in /proc, its exit code and what is printed at its end. It is always the leader of a session. What depends on the
import itself (its time, what is imported by whom, variables read by it) needs a process of `subprocess`.

A forked command has a fork server of its own, so that what it starts in turn is quick as well.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
START_S = 120.0
"""For the server to have imported all, on a machine that is busy."""
ROOM_BYTES = 32 * 1024
"""For words and environments that are longer than those of the server, in what /proc shows of a process."""
HIGH = 1000
"""A number beyond those of descriptors that a process has asked for."""
CHANNEL = 3
"""The descriptor by which a server is asked."""


class ForkServer:
    """A process that forks others, as children of this one. It starts with the first request, and ends with this one.

    The socket is there before, so that a test that counts what it leaves open need not know.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(START_S)
        self._environment = {**os.environ, "ROOM": "-" * ROOM_BYTES}
        self._turn = threading.Lock()
        self._prctl = ctypes.CDLL(None).prctl

    def start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Start a process with these descriptors; its process id."""
        with self._turn:
            if self._theirs.fileno() != -1:
                self._start_server()
            self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._ours, [json.dumps(request).encode()], descriptors)
                answer = self._ours.recv(64)
            finally:
                self._prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the fork server has ended: it may have printed why"
        return int(answer)

    def _start_server(self) -> None:
        process = subprocess.Popen(
            [sys.executable, __file__, str(self._theirs.fileno()), "-" * ROOM_BYTES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._theirs.fileno()],
            env=self._environment,
            start_new_session=True,
        )
        process.returncode = 0  # nobody waits for it
        self._theirs.close()

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()

    def fork_server(self) -> dict[str, Any] | None:
        """Fork this process, while it has one thread, as the server: a request in what that forks, None here."""
        if os.fork() > 0:
            self._theirs.close()
            return None
        os.setsid()
        self._ours.detach()
        show(["a fork server"], {})
        nothing = os.open(os.devnull, os.O_RDWR)
        return serve({0: nothing, 1: nothing, 2: nothing, CHANNEL: self._theirs.detach()})


_server: ForkServer | None = None


class Popen(subprocess.Popen[Any]):
    """subprocess.Popen, but the process is forked by the fork server."""

    def _execute_child(self, *given: Any) -> None:
        execute = super()._execute_child  # type: ignore[misc]
        of = inspect.signature(execute).bind(*given).arguments
        words = [os.fspath(word) for word in of["args"]]
        is_known = words[0] == sys.executable and (words[1] in ("-c", "-m") or words[1].endswith(".py"))
        if _server is None or not is_known or of["preexec_fn"] is not None:
            execute(*given)
            return
        pipes = [of[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        standard = [number if mine == -1 else mine for number, mine in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {
            "words": words[1:],
            "cwd": os.fspath(of["cwd"] or os.getcwd()),
            "environment": dict(os.environ if of["env"] is None else of["env"]),
            "descriptors": [0, 1, 2, *of["pass_fds"]],
        }
        self.pid = _server.start(request, [*standard, *of["pass_fds"]])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(words: list[Any], *, timeout: float | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """subprocess.run, with text and captured output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen([str(word) for word in words], text=True, **pipes, **options) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(words, process.returncode, out, errors)


def begin() -> None:
    """Let commands of tests, and what heterps.processes starts in this process, be forked, where the system can."""
    global _server
    import heterps.processes

    if sys.platform == "linux":
        _server = ForkServer()
        atexit.register(_server.close)
        heterps.processes.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": Popen})  # type: ignore[attr-defined]


# --- in the server, and in what it forks ------------------------------------------------------------------------------


INSTALLED: list[str] = []
"""The path of Python without what a process adds to it."""


def main() -> None:
    global _server
    INSTALLED.extend(sys.path[1 + len(python_path()) :])
    preload()
    request = serve({0: 0, 1: 1, 2: 2, CHANNEL: int(sys.argv[1])})
    while not " ".join(request["words"]).startswith("-m heterps."):  # a command, which starts others
        _server = ForkServer()
        started_by_it = _server.fork_server()
        if started_by_it is None:
            break
        request, _server = started_by_it, None
    become(request["words"])


def preload() -> None:
    """Import all, also what torch imports in the first backward pass and numba for the first kernel."""
    import compile_once  # noqa: F401 forked processes wait for each other's kernels
    import numba
    import quick_profiles  # noqa: F401 in forked processes
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    import heterps

    for module in pkgutil.walk_packages(heterps.__path__, "heterps."):
        if not module.name.startswith("heterps.launch.ray") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    numba.njit(lambda number: number + 1)(1)
    subprocess.Popen = Popen  # type: ignore[misc] of the processes that are forked
    gc.collect()
    gc.freeze()


def serve(descriptors: dict[int, int]) -> dict[str, Any]:
    """Fork for each request, and return it in the fork, which has the descriptors of the request."""
    keep(descriptors)
    channel = socket.socket(fileno=CHANNEL)
    while True:
        data, received, _, _ = socket.recv_fds(channel, 1 << 20, 64)
        if not data:
            os._exit(0)
        if (between := os.fork()) == 0:
            between = os.getpid()
            if os.fork() > 0:
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0002)
            os.setsid()
            request: dict[str, Any] = json.loads(data)
            os.chdir(request["cwd"])
            show(request["words"], request["environment"])
            channel.send(str(os.getpid()).encode())
            channel.detach()
            keep(dict(zip(request["descriptors"], received, strict=True)))
            return request
        os.waitpid(between, 0)
        for descriptor in received:
            os.close(descriptor)


def keep(descriptors: dict[int, int]) -> None:
    """Let these be the open descriptors, by the numbers that they get."""
    moved = {number: fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH) for number, descriptor in descriptors.items()}
    os.closerange(0, HIGH)
    for number, descriptor in moved.items():
        os.dup2(descriptor, number)
        os.close(descriptor)


def become(words: list[str]) -> None:
    """Be the process that `python WORDS` makes."""
    is_buffered = "PYTHONUNBUFFERED" not in os.environ
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = output(1, "strict", is_buffered, os.isatty(1))
    sys.stderr = sys.__stderr__ = output(2, "backslashreplace", is_buffered, True)
    kind = words[0] if words[0] in ("-c", "-m") else "script"
    sys.argv = words[1:] if kind == "-m" else words if kind == "script" else ["-c", *words[2:]]
    first = {"-c": "", "-m": os.getcwd(), "script": str(Path(words[0]).resolve().parent)}[kind]
    sys.path[:] = [first, *dict.fromkeys([*map(os.path.abspath, python_path()), *INSTALLED])]
    importlib.invalidate_caches()
    try:
        execute(kind, words)
        code = 0
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    leave(code)


def output(descriptor: int, errors: str, is_buffered: bool, by_line: bool) -> io.TextIOWrapper:
    file = os.fdopen(descriptor, "wb", buffering=-1 if is_buffered else 0, closefd=False)
    by_line, at_once = is_buffered and by_line, not is_buffered
    return io.TextIOWrapper(file, encoding="utf-8", errors=errors, line_buffering=by_line, write_through=at_once)


def execute(kind: str, words: list[str]) -> None:
    if kind == "-m":
        if not hasattr(sys.modules.get(words[1]), "__path__"):  # else it is the package's __main__ that runs
            sys.modules.pop(words[1], None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif kind == "script":
        runpy.run_path(words[0], run_name="__main__")
    else:
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(words[1], vars(sys.modules["__main__"]))


def leave(code: int) -> None:
    """End as python does, but for taking apart what was imported, which takes long."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def python_path() -> list[str]:
    return list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def show(words: list[str], environment: dict[str, str]) -> None:
    """Take this environment, and write it and the words where /proc reads those of this process."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it may be another than the one that was found before
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    variables = [f"{name}={value}" for name, value in environment.items()]
    for start, end, texts in ((45, 46, [sys.executable, *words]), (47, 48, variables)):
        size = int(fields[end]) - int(fields[start])
        text = "".join(f"{text}\0" for text in texts).encode(errors="surrogateescape")
        ctypes.memmove(int(fields[start]), text[: size - 1].ljust(size, b"\0"), size)


if __name__ == "__main__":
    main()
