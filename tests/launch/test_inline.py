"""The inline launcher: signals, threads and what it leaves behind in the process."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from heterps.config import Servers, load_job
from heterps.errors import PeerLost
from heterps.launch.by_plan import train_once
from heterps.planning.inline import unpredicted_plan
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer

NUM_STEPS = 13  # twelve of 16 samples and one of 8


class Signaller(Observer):
    """Sends this process the signals after the given steps."""

    def __init__(self, signals):
        self.signals, self.steps, self.torch_threads = signals, 0, 0

    def stepped(self, samples, seconds, loss, interval):
        self.steps += 1
        self.torch_threads = torch.get_num_threads()
        for number in self.signals.get(self.steps, ()):
            os.kill(os.getpid(), number)


@pytest.fixture
def train(tiny_job, tmp_path):
    def train(signals=None, *, resume=False, threads=1):
        job = load_job(tiny_job).model_copy(update={"threads": threads})
        run = Run(tmp_path / "run")
        if not resume:
            run.create(job)
        observer = Signaller(signals or {})
        plan = unpredicted_plan(job.cluster, num_cores=threads)
        return train_once(job, run, plan, resume=resume, observer=observer), observer

    return train


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    threads, torch_threads = set(threading.enumerate()), torch.get_num_threads()
    yield
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert set(threading.enumerate()) <= threads
    assert torch.get_num_threads() == torch_threads


def test_a_run_without_signals_completes(train):
    outcome, observer = train()
    assert (outcome.stopped_by, observer.steps, outcome.samples) == (None, NUM_STEPS, 200)
    assert outcome.test.count == 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_running_step_and_resuming_equals_a_whole_run(train, number, tmp_path):
    outcome, observer = train({5: [number]})
    assert (outcome.stopped_by, observer.steps) == (number.name, 5)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["0000000005"]
    outcome, observer = train(resume=True)
    assert (outcome.stopped_by, observer.steps, outcome.restarts) == (None, NUM_STEPS - 5, 1)


def test_of_two_signals_the_first_is_the_reason(train):
    assert train({5: [signal.SIGTERM, signal.SIGTERM]})[0].stopped_by == "SIGTERM"


def test_a_second_interrupt_does_not_wait_for_anything(train, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train({5: [signal.SIGINT, signal.SIGINT]})
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_torch_has_one_thread_during_the_run_of_a_small_model(train):
    assert train(threads=3)[1].torch_threads == 1, "threads inside a layer cost a small model more than they save"


def test_a_run_on_another_thread_leaves_signals_to_the_main_one(train):
    found = []
    thread = threading.Thread(target=lambda: found.append(train()[0]))
    thread.start()
    thread.join(60)
    assert found[0].samples == 200


def test_an_error_leaves_nothing_behind_either(train, monkeypatch):
    def fail(*args):
        raise RuntimeError("a crash")

    monkeypatch.setattr(Signaller, "stepped", fail)
    with pytest.raises(RuntimeError, match="a crash"):
        train(threads=3)


def test_servers_that_nobody_runs_are_named(tiny_job, tmp_path):
    servers = Servers(addresses=(f"ipc://{tmp_path}/nobody",), deadline_s=1.0)
    job = load_job(tiny_job).model_copy(update={"servers": servers})
    run = Run(tmp_path / "run")
    run.create(job)
    with pytest.raises(PeerLost, match="nobody"):
        train_once(job, run, unpredicted_plan(job.cluster, num_cores=1), resume=False, observer=Observer())
