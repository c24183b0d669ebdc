"""Jobs on threads that are changed while they run, at samples that a test chooses."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from heterps.config import Job, load_job
from heterps.errors import HeterpsError
from heterps.launch import train
from heterps.model.build import build_model
from heterps.model.trace import trace
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.training.protocol.messages import Ready
from heterps.training.run.control import Control
from heterps.training.run.observer import Observer
from heterps.training.worker.mailbox import Mailbox

DEADLINE_S = 60.0
CLUSTER = {
    "resources": {
        "cpu": {"device": "cpu", "usd_per_hour": 1.0, "limit": 6},
        "big": {"device": "cpu", "usd_per_hour": 10.0, "limit": 4},
    },
    "server_resource": "cpu",
}


def make_plan(counts: list[int], cuts: list[int], num_layers: int = 5, **fields) -> Plan:
    """Stages on cpu and big in turn, the next beginning at each cut."""
    firsts, lasts = [0, *cuts], [*(cut - 1 for cut in cuts), num_layers - 1]
    stages = tuple(
        Stage(first=first, last=last, resource=("cpu", "big")[number % 2], count=count)
        for number, (first, last, count) in enumerate(zip(firsts, lasts, counts, strict=True))
    )
    bill = {"throughput": 0.0, "hours": 0.0, "usd": 0.0, "bottleneck": "", "method": "test"} | fields
    return Plan(stages=stages, servers=PlannedServers(resource="cpu", count=1), **bill)


def on_threads(path: Path, plan: Plan, **fields) -> Job:
    """The job of that file on threads, by a plan that is written beside it, with a line of metrics for each batch."""
    job = load_job(path)
    num_layers = len(trace(build_model(job.model, job.data.columns, 0)).layers)
    assert plan.stages[-1].last == num_layers - 1
    plan.write(path.parent / "plan.json")
    wanted = {"launcher": "local", "plan": str(path.parent / "plan.json"), "workers": {"channel": "memory"}}
    data = {**job.data.model_dump(), **fields.pop("data", {})}
    more = {"cluster": CLUSTER, "metrics_every_samples": job.data.batch_size, "data": data}
    return Job.model_validate({**job.model_dump(), **wanted, **more, **fields})


def replannable(path: Path) -> Job:
    """The job of that file with one worker, so that it would take hours.

    By its profile big is a thousand times as fast as cpu, and much faster than cpu is measured to be.
    """
    job = load_job(path)
    cost = {"sync_s": 0.0, "input_s": 0.0, "alpha": 1.0, "beta": 1.0}
    costs = {"cpu": Cost(compute_s=0.01, **cost), "big": Cost(compute_s=0.00001, **cost)}
    traced = trace(build_model(job.model, job.data.columns, 0))
    layers = tuple(LayerProfile(name=layer.name, kind="linear", costs=costs) for layer in traced.layers)
    Profile(model="tiny", batch_size=job.data.batch_size, layers=layers).write(path.parent / "profile.json")
    fields = {"profile": str(path.parent / "profile.json"), "data": {"epochs": 100_000}}
    return on_threads(path, make_plan([1], []), metrics_every_samples=16_000, **fields)


def inline(job: Job) -> Job:
    return Job.model_validate({**job.model_dump(), "launcher": "inline", "plan": None, "workers": {}, "servers": None})


def metrics(folder: Path | str) -> list[dict]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


class Losses(Observer):
    """Of all steps, as they are: those of metrics.jsonl are rounded."""

    def __init__(self, end: float = math.inf) -> None:
        self.losses: list[float] = []
        self.end = end

    def stepped(self, samples, seconds, loss, interval) -> None:
        self.losses.append(loss)
        if samples >= self.end:
            raise Enough


class Enough(HeterpsError):
    """The test has seen what it wanted."""


def inline_losses(job: Job, end: float = math.inf) -> list[float]:
    """Of a run of one process, until so many samples."""
    observer = Losses(end)
    with suppress(Enough):
        train(inline(job), f"inline-{time.monotonic_ns()}", observer=observer)
    return observer.losses


class Script(Losses):
    """Asks for a change at a number of samples each, and lets no step pass before its new workers are ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *asks) -> None:
        super().__init__()
        self.asks = list(asks)
        self.told, self.changes, self.warnings = [], [], []
        self.ready = threading.Semaphore(0)
        self.awaited = 0
        self.controls: list[Control] = []
        enter, send, script = Control.__enter__, Mailbox.send, self

        def entered(control: Control) -> Control:
            script.controls.append(control)
            return enter(control)

        def sent(mailbox: Mailbox, peer, message, values=None) -> None:
            send(mailbox, peer, message, values)
            if isinstance(message, Ready):
                script.ready.release()

        monkeypatch.setattr(Control, "__enter__", entered)
        monkeypatch.setattr(Mailbox, "send", sent)

    def started(self, samples, total, resumed) -> None:
        self.ready = threading.Semaphore(0)  # of those that the job begins with nobody is waited for
        self.awaited = 0

    def stepped(self, samples, seconds, loss, interval) -> None:
        super().stepped(samples, seconds, loss, interval)
        for _ in range(self.awaited):
            assert self.ready.acquire(timeout=DEADLINE_S), "a new worker was not ready in time"
        self.awaited = 0
        while self.asks and samples >= self.asks[0][0]:
            _, message, self.awaited = self.asks.pop(0)
            self.controls[-1].put(message, self.told.append)

    def changed(self, what) -> None:
        self.changes.append(what)

    def warned(self, message) -> None:
        self.warnings.append(message)


class OneAfterTheOther(Script):
    """Asks for the next change when the one before is made, and ends the job soon after the last."""

    def __init__(self, monkeypatch, *asks):
        super().__init__(monkeypatch)
        self.next = list(asks)

    def stepped(self, samples, seconds, loss, interval):
        super().stepped(samples, seconds, loss, interval)
        if len(self.changes) == len(self.told):
            if self.next:
                self.controls[-1].put(self.next.pop(0), self.told.append)
            elif self.end == math.inf:
                self.end = samples + 160
