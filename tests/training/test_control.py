"""How commands find a running job, and what they are told where there is none."""

from __future__ import annotations

import json
import os
import stat
import threading
from contextlib import contextmanager

import pytest

from heterps.errors import PeerLost, RunError
from heterps.training.run.commands import AskStatus, CommandReply, Scale
from heterps.training.run.control import FILE, Control, NotRunning, ask, find, refuse_if_running


@pytest.fixture
def run(tmp_path):
    (tmp_path / "job.yaml").write_text("")
    return tmp_path


@contextmanager
def answering(control):
    """A job that echoes what it is asked, on a thread of its own."""
    ended = threading.Event()

    def loop():
        while not ended.wait(0.001):
            for request in control.requests():
                request.answer(CommandReply(repr(request.message)))

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_question_is_answered_by_the_loop_of_the_job(run):
    with Control(run) as control, answering(control):
        assert ask(run, Scale(1, 4)) == CommandReply("Scale(stage=1, count=4)")
        assert [ask(run, AskStatus()).text for _ in range(3)] == ["AskStatus()"] * 3


def test_the_file_tells_where_and_who_and_is_gone_at_the_end(run):
    with Control(run) as control, answering(control):
        told = json.loads((run / FILE).read_text())
        found = find(run)
        assert (found.address, found.pid, str(found.directory)) == (told["address"], os.getpid(), os.getcwd())
        folder = os.path.dirname(found.address.removeprefix("ipc://"))
        modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (run / FILE, folder)]
        assert modes == [0o600, 0o700], "nobody else may read or enter"
    assert not (run / FILE).exists()
    assert not os.path.exists(folder)


def test_a_run_that_does_not_run_says_so_and_how_it_goes_on(run):
    with pytest.raises(NotRunning, match=r"is not running\. Go on with it by `heterps train .*--resume`"):
        find(run)


def test_a_run_that_has_completed_is_not_to_be_gone_on_with(run):
    (run / "summary.json").write_text('{"status": "stopped by SIGINT"}')
    with pytest.raises(NotRunning, match="--resume"):
        find(run)
    (run / "summary.json").write_text('{"status": "completed"}')
    with pytest.raises(NotRunning, match=r"is not running: it has completed\. `heterps report .*` shows how it went"):
        find(run)


def test_a_file_that_a_dead_process_left_is_recognised(run):
    with Control(run):
        left = (run / FILE).read_text()
    (run / FILE).write_text(left)
    with pytest.raises(NotRunning, match=f"is not running: its process {os.getpid()} has ended without a word"):
        ask(run, AskStatus())
    refuse_if_running(run)
    with Control(run) as control, answering(control):
        assert not ask(run, AskStatus()).is_error


def test_a_second_job_in_the_same_folder_is_refused(run):
    with Control(run):
        with pytest.raises(RunError, match="is running already"), Control(run):
            pass
        assert find(run).pid == os.getpid(), "the first is as it was"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda told: json.dumps(told | {"host": "elsewhere"}), "runs on elsewhere: give the command there"),
        (lambda told: "{", "is damaged, so its job cannot be found"),
        (lambda told: "[]", "is damaged, so its job cannot be found"),
    ],
)
def test_a_job_that_cannot_be_spoken_to_from_here_is_no_dead_one(run, change, text):
    with Control(run):
        told = json.loads((run / FILE).read_text())
        (run / FILE).write_text(change(told))
        with pytest.raises(RunError, match=text) as error:
            find(run)
        assert not isinstance(error.value, NotRunning)


def test_only_the_user_of_the_job_may_speak_to_it(run, monkeypatch):
    with Control(run):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(RunError, match="is run by another user"):
            find(run)


def test_a_folder_without_a_job_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"is not a run: there is no job\.yaml in it"):
        find(tmp_path)


def test_a_job_that_does_not_answer_in_time_is_named(run):
    with Control(run), pytest.raises(PeerLost, match=rf"its job \(process {os.getpid()}\) did not answer within 0.1 s"):
        ask(run, AskStatus(), deadline_s=0.1)


def test_a_job_that_ends_tells_those_who_asked(run):
    answers = []
    control = Control(run)
    with control:
        control.put(AskStatus(), answers.append)
    assert answers == [CommandReply("the job has just ended", is_error=True)]
