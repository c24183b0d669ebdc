"""A forked process is to a test what a process of `subprocess` is: the same code in both tells the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import preloaded
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are those of subprocess")

TELL = """
import json, os, sys, threading
print(json.dumps({
    "words": sys.argv, "first": sys.path[0], "path": sys.path[1:], "main": __name__,
    "folder": os.getcwd(), "parent": os.getppid(), "variables": dict(os.environ), "leads": os.getpgid(0) == os.getpid(),
    "open": sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd in (0, 1, 2, PASSED)),
    "passed": os.readlink(f"/proc/self/fd/{PASSED}"),
    "command": open("/proc/self/cmdline").read().strip("\\0"),
    "mark": "MARK=here" in open("/proc/self/environ").read().split("\\0"),
    "threads": threading.active_count(), "handler": str(__import__("signal").getsignal(2)),
    "buffered": (sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.line_buffering),
    "encoding": (sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors), "input": sys.stdin.read(),
}, indent=1))
print("to the errors", file=sys.stderr)
"""


@pytest.fixture(params=["-c", "-m", "script"])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    return {"-c": ["-c", ""], "-m": ["-m", "telling"], "script": [str(tmp_path / "telling.py")]}[request.param]


def both(words: list[str], told: str = "", **options: object) -> list[tuple[int, str, str]]:
    """The exit code, output and errors of a process of subprocess and of a forked one."""
    ends = []
    for kind in (subprocess.Popen, preloaded.Popen):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with kind([sys.executable, *words], text=True, start_new_session=True, **pipes, **options) as process:
            out, errors = process.communicate(told, timeout=120)
        ends.append((process.returncode, out, errors))
    return ends


def test_it_is_started_as_any_other(tmp_path: Path, words: list[str]) -> None:
    with (tmp_path / "passed").open("w") as passed:
        code = f"PASSED = {passed.fileno()}\n{TELL}"
        (tmp_path / "telling.py").write_text(code)
        words = [code if word == "" else word for word in words]
        variables = {**os.environ, "MARK": "here", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        variables.pop("PYTHONUNBUFFERED", None) if "telling" in words else variables.update(PYTHONUNBUFFERED="1")
        options = {"cwd": tmp_path, "env": variables, "pass_fds": [passed.fileno()]}
        usual, forked = both([*words, "one", "two words"], "some input", **options)
    assert usual[0] == 0, usual[2]
    assert json.loads(forked[1]) == json.loads(usual[1])
    assert forked == usual


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('what went wrong')",
        "import os; os._exit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; signal.raise_signal(signal.SIGTERM)",
        "import atexit; atexit.register(print, 'at the end'); print('first')",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('a thread'))).start()",
    ],
)
def test_it_ends_as_any_other(code: str) -> None:
    usual, forked = both(["-c", code])
    assert forked == usual


def test_an_error_is_printed_and_an_interrupt_kills() -> None:
    failed = preloaded.run([sys.executable, "-c", "1 / 0"])
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")
    waiting = "import threading; print('waits', flush=True); threading.Event().wait()"
    with preloaded.Popen([sys.executable, "-c", waiting], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"waits\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def test_what_it_starts_is_its_own_child_and_quick_as_well() -> None:
    code = """
import os
from heterps.processes import Child
child = Child("a unit", "heterps.profiling.unit")
told = open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()
assert int(told[1]) == os.getpid() and int(told[3]) == child.pid, told
assert "torch" in open(f"/proc/{child.pid}/maps").read()
child.stop(60)
print(child._process.returncode)
"""
    done = preloaded.run([sys.executable, "-c", code], timeout=120)
    assert done.stdout == "0\n", done.stderr
