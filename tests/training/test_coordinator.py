"""The coordinator with workers that only say what they are told to: what it tells them, counts, saves, and whom it
blames."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tiny import JOB, write_tiny

from heterps.checkpoint import load_latest
from heterps.config import Job, load_job
from heterps.errors import ModelError, PeerLost
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.ps.client.local import LocalClient, in_process
from heterps.ps.protocol.specs import TableSpecs
from heterps.sync import replay
from heterps.training.coordinator.coordinator import train_staged
from heterps.training.protocol.messages import (
    ALL_LANES,
    Assign,
    Assigned,
    Failed,
    Go,
    Message,
    NoBatch,
    Pushed,
    Ready,
    Stop,
    Usage,
)
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer, Outcome
from heterps.training.worker.mailbox import Mailbox
from heterps.training.worker.worker import COORDINATOR, WorkerStart
from heterps.wire import MemoryNetwork

Answer = Callable[[str, Go], Message | None]


def slowly_from_the_third(release: threading.Event) -> Answer:
    """Two batches at once, the others when they are released."""

    def answer(worker: str, go: Go) -> Message:
        if go.batch >= 2:
            assert release.wait(30.0)
        return pushes(worker, go)

    return answer


def pushes(worker: str, go: Go) -> Message:
    """As if the batch of 16 samples were computed; its loss goes by the round."""
    return Pushed(worker, go.lane, go.iteration, 16, Usage(1.0, 0.0, 1.0), float(go.iteration))


class Actors:
    """Workers that answer at once, by `answer`; a fleet."""

    counts: ClassVar[dict[str, int]] = {}
    refuses_changes = place = None

    def __init__(self, answer: Answer = pushes, start: Callable[[str], bool] = lambda _: True) -> None:
        self.network = MemoryNetwork()
        self.mailbox = Mailbox(self.network.channel(COORDINATOR))
        self.told: dict[str, list[Message]] = {}
        self._answer, self._starts = answer, start
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients: list[LocalClient] = []

    def start(self, workers: Sequence[WorkerStart]) -> None:
        for worker in workers:
            if self._starts(worker.name):
                self.told[worker.name] = []
                thread = threading.Thread(target=self._act, args=(worker.name,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self, worker: str) -> None:
        """They stop when they are told."""

    def connect(self, tables: TableSpecs) -> LocalClient:
        return in_process(tables)

    def take_news(self) -> list[object]:
        return []

    def check(self) -> None:
        """They do not die."""

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.mailbox.close()

    def _act(self, name: str) -> None:
        mailbox = Mailbox(self.network.channel(name))
        mailbox.send(COORDINATOR, Ready(name, "here"))
        while not self._stop.is_set():
            if (envelope := mailbox.receive(0.05)) is None:
                continue
            self.told[name].append(envelope.message)
            match envelope.message:
                case Assign() as assign:
                    mailbox.send(COORDINATOR, Assigned(name, assign.layout.epoch))
                case Go() as go if (answer := self._answer(name, go)) is not None:
                    with suppress(PeerLost):
                        mailbox.send(COORDINATOR, answer)
                case Stop():
                    break
        mailbox.close()


class Heard(Observer):
    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.warnings: list[str] = []

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        self.steps.append((samples, loss))

    def warned(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 64)
    write_tiny(tmp_path / "test.parquet", 20)
    (tmp_path / "job.yaml").write_text(JOB)
    return load_job("job.yaml").model_copy(update={"launcher": "local"})


@pytest.fixture
def fleets() -> Iterator[list[Actors]]:
    made: list[Actors] = []
    yield made
    for fleet in made:
        fleet.close()


def run(
    job: Job, fleets: list[Actors], actors: Actors, counts: tuple[int, ...] = (1, 1), **more: Any
) -> tuple[Outcome, Heard]:
    fleets.append(actors)
    folder = Run(Path("run"))
    if not more.get("resume"):
        folder.create(job)
    firsts = [0, 2, 4][: len(counts)]
    lasts = [*(first - 1 for first in firsts[1:]), 4]
    stages = tuple(
        Stage(first=f, last=last, resource="cpu", count=n) for f, last, n in zip(firsts, lasts, counts, strict=True)
    )
    plan = Plan(
        method="test", stages=stages, servers=PlannedServers(resource="cpu", count=1), throughput=0, hours=0, usd=0,
        bottleneck="",
    )  # fmt: skip
    heard = Heard()
    options: dict[str, Any] = {"resume": False, "stop": lambda: None} | more
    outcome = train_staged(job, folder, plan, actors, observer=heard, **options)
    assert isinstance(outcome, Outcome)
    return outcome, heard


def changed(job: Job, **fields: Any) -> Job:
    return Job.model_validate(job.model_dump() | fields)


def goes(actors: Actors, worker: str) -> list[Go]:
    return [message for message in actors.told[worker] if isinstance(message, Go)]


def test_every_batch_is_one_round_of_all_workers_and_all_are_told_to_stop(job: Job, fleets):
    actors = Actors()
    outcome, heard = run(job, fleets, actors, (2, 1))
    assert (outcome.samples, outcome.stopped_by) == (64, None)
    assert heard.steps == [(16 * n, 3.0 * n) for n in (1, 2, 3, 4)]
    for worker in ("worker-1.0", "worker-1.1", "worker-2.0"):
        assert [(go.batch, go.samples) for go in goes(actors, worker)] == [(0, 0), (1, 16), (2, 32), (3, 48)]
    fleets[0].close()
    assert all(isinstance(told[-1], Stop) for told in actors.told.values())
    assert load_latest(Path("run/checkpoints")).clock == 4
    assert len(Run(Path("run")).metrics()) == 1


def test_policies_begin_at_the_time_of_the_run_and_their_traces_replay(job: Job, fleets):
    run(job, fleets, Actors(), (1, 1))
    paths = sorted(Path("run/traces").glob("*.jsonl"))
    assert [path.name for path in paths] == ["stage-1.jsonl", "stage-2.jsonl"]
    for path in paths:
        header, first = map(json.loads, path.read_text().splitlines()[:2])
        assert header["now"] == 0.0, "the clock of the run starts when workers are ready"
        assert first["now"] >= 0.0
        replay(path)


def test_a_resumed_run_goes_on_counting(job: Job, fleets):
    is_asked = threading.Event()
    actors = Actors(slowly_from_the_third(is_asked))

    def stop() -> str | None:
        if len(actors.told.get("worker-1.0", [])) > 3:  # its place, and three batches
            is_asked.set()
        return "SIGTERM" if is_asked.is_set() else None

    first, _ = run(job, fleets, actors, stop=stop)
    assert first.stopped_by == "SIGTERM"
    assert first.samples == 48, "the batch under way is done, and no other begins"
    actors = Actors()
    second, _ = run(job, fleets, actors, (1, 2), resume=True)
    assert (second.samples, second.restarts) == (64, 1)
    assert goes(actors, "worker-1.0")[0] == Go(ALL_LANES, 1, first.samples, 0, first.samples // 16)
    header = json.loads(Path("run/traces/stage-1.1.jsonl").read_text().splitlines()[0])
    assert header["now"] == pytest.approx(first.seconds)


def test_lanes_have_batches_of_their_own_and_no_batch_is_told_twice(job: Job, fleets):
    actors = Actors()
    outcome, heard = run(changed(job, sync="ssp:1"), fleets, actors, (2,))
    told = [go for worker in actors.told for go in goes(actors, worker)]
    assert sorted(go.batch for go in told) == [0, 1, 2, 3]
    assert (outcome.samples, len(heard.steps)) == (64, 4)


def test_an_epoch_that_is_shorter_than_thought_ends_where_a_worker_finds_its_end(job: Job, fleets):
    columns = job.data.columns.model_dump() | {"dense_missing": "skip"}
    skipping = changed(job, data=job.data.model_dump() | {"columns": columns, "epochs": 2})

    def answer(worker: str, go: Go) -> Message | None:
        if go.batch >= 3:
            return NoBatch(worker, go.lane, go.iteration, go.epoch, 3) if worker.startswith("worker-1") else None
        return pushes(worker, go)

    def in_turn(worker: str, go: Go) -> Message | None:
        """Stage 2 hears of a round once, whatever batch it turns out to be."""
        if worker.startswith("worker-2"):
            return pushes(worker, go)
        return answer(worker, go)

    outcome, _ = run(skipping, fleets, Actors(in_turn), (1, 1))
    assert outcome.samples == 2 * 3 * 16


def test_a_worker_s_error_is_raised_as_if_it_had_been_met_here(job: Job, fleets):
    def answer(worker: str, go: Go) -> Message:
        return Failed(worker, "ModelError", "it does not fit") if go.batch == 2 else pushes(worker, go)

    with pytest.raises(ModelError, match=r"worker-1\.0: it does not fit"):
        run(job, fleets, Actors(answer), (1,))


def test_a_worker_that_does_not_start_is_named(job: Job, fleets, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("heterps.training.coordinator.core.START_S", 0.1)
    impatient = changed(job, workers={"deadline_s": 0.2})
    with pytest.raises(PeerLost, match=r"worker-2\.0 did not start"):
        run(impatient, fleets, Actors(start=lambda name: name != "worker-2.0"))


def test_a_worker_without_news_is_named(job: Job, fleets):
    def answer(worker: str, go: Go) -> Message | None:
        return None if worker == "worker-1.1" and go.batch == 1 else pushes(worker, go)

    impatient = changed(job, workers={"deadline_s": 0.5, "replacements": 0})
    with pytest.raises(PeerLost, match=r"waited 0\.5 s for worker-1\.1: alive, but without news, at clock 1\."):
        run(impatient, fleets, Actors(answer), (2,))


def test_the_time_that_the_coordinator_takes_itself_is_not_time_without_news(job: Job, fleets, monkeypatch):
    monkeypatch.setattr(Heard, "stepped", lambda *_: time.sleep(0.4))
    outcome, _ = run(changed(job, workers={"deadline_s": 0.2}), fleets, Actors(), (1,))
    assert outcome.samples == 64


def test_what_is_no_message_is_warned_of_and_the_run_goes_on(job: Job, fleets):
    actors = Actors()
    stranger = actors.network.channel("stranger")
    stranger.send(COORDINATOR, [b"nonsense"])
    outcome, heard = run(job, fleets, actors, (1,))
    stranger.close()
    assert outcome.samples == 64
    assert any("stranger sent what is no message" in warning for warning in heard.warnings)
