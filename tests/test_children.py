"""Children that answer, fail, say nothing, hang, or lose their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps.errors import PeerLost
from heterps.processes import Adopted, Child

ECHO = """
    import json, sys
    from heterps.processes import give_answer, reserve_stdout
    answers = reserve_stdout()
    print("user code prints")
    for line in sys.stdin:
        give_answer(answers, {"got": json.loads(line)})
"""


@pytest.fixture(autouse=True)
def not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start them as users do, where other tests have preloaded.py."""
    monkeypatch.setattr("heterps.processes.subprocess", subprocess)


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Child]:
    """A child that runs the given code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[Child] = []

    def make(code: str) -> Child:
        (tmp_path / "child_of_tests.py").write_text(textwrap.dedent(code))
        made.append(Child("helper-7", "child_of_tests"))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert all(not is_running(one.pid) for one in made)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_commands_are_answered_whatever_user_code_prints(child) -> None:
    echo = child(ECHO)
    for number in range(3):
        echo.send({"number": number})
        assert echo.answer(60, "echoes") == {"got": {"number": number}}
    assert echo.ended is None
    echo.stop(60)
    assert echo._process.returncode == 0, "the end of its input was not enough to end it"


def test_an_error_is_told_with_the_name_and_what_it_did(child) -> None:
    failing = child('import sys\nfrom heterps.processes import *\ngive_answer(reserve_stdout(), {"error": "no disk"})')
    with pytest.raises(PeerLost, match=rf"helper-7 \(process {failing.pid}\), which looks, failed with no disk"):
        failing.answer(60, "looks")


def test_one_that_ends_without_a_word_is_quoted_from_its_errors(child) -> None:
    broken = child("raise OSError('the cable is out')")
    with pytest.raises(PeerLost, match=r"helper-7 .*, which looks, ended with exit code 1: OSError: the cable is out"):
        broken.answer(60, "looks")


def test_one_that_does_not_answer_is_ended_at_the_deadline(child) -> None:
    silent = child("import time\ntime.sleep(600)")
    with pytest.raises(PeerLost, match=r"which sleeps, did not answer within 0\.2 s"):
        silent.answer(0.2, "sleeps")
    silent.close()
    assert silent.ended == "ended with exit code -9 (SIGKILL)"


def test_one_that_will_not_stop_is_ended_by_force(child) -> None:
    stubborn = child("import time\nprint('{}', flush=True)\ntime.sleep(600)")
    stubborn.answer(60, "starts")
    stubborn.stop(0.1)
    assert not is_running(stubborn.pid)


def test_a_signal_that_ended_it_is_named(child) -> None:
    killed = child(ECHO)
    killed.send({})
    killed.answer(60, "starts")
    os.kill(killed.pid, signal.SIGKILL)
    with pytest.raises(PeerLost, match=r"ended with exit code -9 \(SIGKILL\)"):
        killed.answer(60, "echoes")


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "child_of_tests.py").write_text(textwrap.dedent(ECHO))
    code = textwrap.dedent(
        f"""
        import sys, time
        sys.path.insert(0, {str(tmp_path)!r})
        from heterps.processes import Adopted, Child
        child = Child("helper-7", "child_of_tests")
        child.send({{}})
        child.answer(60, "starts")
        print(child.pid, flush=True)
        time.sleep(600)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        orphan = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 60
    while is_running(orphan):
        assert time.monotonic() < deadline, "the child outlives its parent"
        time.sleep(0.02)


def test_what_it_prints_is_kept_in_its_log_and_an_empty_log_is_not(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "child_of_tests.py").write_text(textwrap.dedent(ECHO))
    (tmp_path / "silent_child.py").write_text("")
    logs = tmp_path / "logs"
    for _ in range(2):
        chatty = Child("helper-7", "child_of_tests", log=logs / "helper-7.log")
        chatty.stop(60)
    silent = Child("helper-8", "silent_child", log=logs / "helper-8.log")
    silent.stop(60)
    assert [path.name for path in logs.iterdir()] == ["helper-7.log"]
    assert (logs / "helper-7.log").read_text() == "user code prints\n" * 2, "of all its lives"
    alone = Child("helper-8", "silent_child", log=tmp_path / "empty" / "helper-8.log")
    alone.stop(60)
    assert not (tmp_path / "empty").exists()


def test_its_parting_word_and_what_it_left_behind(child) -> None:
    """A process that it started keeps its output open, and would keep whoever reads it waiting."""
    leaving = child(
        """
        import os, sys, time
        from heterps.processes import give_answer, reserve_stdout
        answers = reserve_stdout()
        if os.fork() == 0:
            time.sleep(600)
        give_answer(answers, {"kind": "DataError", "error": "row 3 is bad"})
        os._exit(3)
        """
    )
    deadline = time.monotonic() + 60
    while leaving.is_running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert leaving.last_answer == {"kind": "DataError", "error": "row 3 is bad"}
    assert leaving.ended == "ended with exit code 3: row 3 is bad"


def test_a_child_that_cannot_stop_is_ended_some_time_after_its_input(child) -> None:
    stuck = child(
        """
        import threading
        import heterps.processes
        heterps.processes.ORPHAN_S = 0.1
        ended = heterps.processes.watch_input()
        heterps.processes.give_answer(heterps.processes.reserve_stdout(), {})
        threading.Event().wait()
        """
    )
    stuck.answer(60, "starts")
    stuck.release()
    stuck._process.wait(60)
    assert stuck.ended == "ended with exit code 1"


WAITS = """
    import sys, time
    from heterps.processes import give_answer, reserve_stdout, watch_input
    answers = reserve_stdout()
    ended = watch_input(lambda: (give_answer(answers, {"orphaned": True}), time.sleep(60)))
    give_answer(answers, {"begun": True})
    ended.wait()
"""


def test_a_child_that_is_dismissed_does_not_wait_for_another_parent(child: Callable[[str], Child]) -> None:
    helper = child(WAITS)
    helper.answer(30, "begins")
    helper.dismiss()
    helper.stop(30)
    assert not is_running(helper.pid)


def test_a_child_whose_input_ends_without_a_word_may_wait(child: Callable[[str], Child]) -> None:
    helper = child(WAITS)
    helper.answer(30, "begins")
    helper.release()
    assert helper.answer(30, "waits") == {"orphaned": True}
    assert helper.is_running


def test_a_process_that_was_adopted_is_watched_and_ended(child: Callable[[str], Child]) -> None:
    helper = child("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(); input()")
    adopted = Adopted("server-0", helper.pid)
    assert (adopted.is_running, adopted.ended) == (True, None)
    adopted.stop(0.05)  # it does not listen to SIGINT
    helper.stop(30)
    assert not adopted.is_running
    assert adopted.ended == "ended"
    adopted.dismiss()
    adopted.close()
