"""A worker by itself: the test is its coordinator, its neighbours and, for rows, its servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from tiny import JOB, write_tiny
from torch import Tensor, nn

from heterps.config import Job, load_job
from heterps.data.batch import Slots
from heterps.errors import HeterpsError, ModelError, PeerLost
from heterps.model import whole
from heterps.ps.client.local import LocalClient, in_process
from heterps.ps.protocol.specs import TableSpecs
from heterps.training.protocol.layout import Layout, StageLayout
from heterps.training.protocol.messages import (
    ALL_LANES,
    Alive,
    AskState,
    Assign,
    Assigned,
    Failed,
    Forward,
    Go,
    NoBatch,
    Pushed,
    Ready,
    StageState,
    Stop,
)
from heterps.training.worker.mailbox import Envelope, Mailbox
from heterps.training.worker.worker import COORDINATOR, WorkerStart, run_worker
from heterps.wire import MemoryNetwork

SOON_S = 30.0
ALONE = Layout((StageLayout(0, 4, "cpu", ("worker-1.0",)),), 1)


class Fails(nn.Module):
    def forward(self, dense: Tensor) -> Tensor:
        raise ZeroDivisionError("too few")


class Broken(nn.Module):
    """Traced as one layer, which fails when it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = whole(Fails())

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.fails(dense)


class Slow(nn.Module):
    """Its first layer takes longer than others are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps, self.sums = whole(Sleeps()), nn.Linear(2, 1)

    def forward(self, dense: Tensor, slots: Slots) -> Tensor:
        return self.sums(self.sleeps(dense)).flatten()


class Sleeps(nn.Module):
    ended_at = 0.0

    def forward(self, dense: Tensor) -> Tensor:
        time.sleep(0.8)
        Sleeps.ended_at = time.monotonic()
        return dense


class Desk:
    """Where the test sits: it starts a worker, and speaks with it as whoever it likes."""

    def __init__(self, job: Job) -> None:
        self.job, self.network = job, MemoryNetwork()
        self.posts = {name: Mailbox(self.network.channel(name)) for name in (COORDINATOR, "worker-2.0")}
        self.stopped = threading.Event()
        self.errors: list[Exception] = []
        self.clients: list[LocalClient] = []
        self.thread: threading.Thread | None = None

    def start(self, layers: tuple[int, ...] = (0,), stage: int = 0) -> Ready:
        start = WorkerStart("worker-1.0", stage, layers)
        self.thread = threading.Thread(target=self._run, args=(start,), daemon=True)
        self.thread.start()
        return self.expect(Ready)[0]

    def tell(self, message: Any) -> None:
        self.posts[COORDINATOR].send("worker-1.0", message)

    def expect(self, kind: type, who: str = COORDINATOR) -> tuple[Any, Envelope]:
        while (envelope := self.posts[who].receive(SOON_S)) is not None and isinstance(envelope.message, Alive):
            pass  # it only waits
        assert envelope is not None, f"no {kind.__name__} came"
        assert isinstance(envelope.message, kind), envelope.message
        return envelope.message, envelope

    def close(self) -> None:
        self.stopped.set()
        if self.thread is not None:
            self.thread.join(SOON_S)
            assert not self.thread.is_alive()
        for mailbox in self.posts.values():
            mailbox.close()

    def _connect(self, tables: TableSpecs) -> LocalClient:
        client = in_process(tables)
        self.clients.append(client)
        return client

    def _run(self, start: WorkerStart) -> None:
        mailbox = Mailbox(self.network.channel(start.name))
        try:
            run_worker(self.job, start, mailbox, "here", self._connect, self.stopped.is_set)
        except Exception as error:
            self.errors.append(error)
        finally:
            mailbox.close()


@pytest.fixture
def open_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Desk]]:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", 40)
    (tmp_path / "job.yaml").write_text(JOB)
    desks = []

    def make(**fields: Any) -> Desk:
        job = Job.model_validate(load_job("job.yaml").model_dump() | fields)
        desks.append(Desk(job))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


def assigned(desk: Desk, layout: Layout = ALONE) -> None:
    desk.tell(Assign(layout, {}))
    assert desk.expect(Assigned)[0] == Assigned("worker-1.0", layout.epoch)


def go(desk: Desk, number: int, batch: int, samples: int = 0, lane: int = ALL_LANES) -> None:
    desk.tell(Go(lane, number, samples, 0, batch))


def test_a_worker_says_where_it_is_takes_its_place_and_pushes_what_it_computed(open_desk):
    desk = open_desk()
    assert desk.start() == Ready("worker-1.0", "here")
    assigned(desk)
    go(desk, 1, 0)
    pushed, envelope = desk.expect(Pushed)
    assert (pushed.worker, pushed.lane, pushed.iteration, pushed.num_samples) == ("worker-1.0", ALL_LANES, 1, 16)
    assert 0.3 < pushed.loss < 1.5
    scores = envelope.values
    assert scores["logits"].shape == scores["labels"].shape == (16,)
    (client,) = desk.clients
    assert client.export_dense("dense")[2] == 1
    assert client.num_rows("embedding") > 0
    assert pushed.usage.compute_s > 0
    desk.tell(Stop())
    desk.thread.join(SOON_S)
    assert not desk.thread.is_alive()
    assert desk.errors == []


def test_a_batch_that_is_not_there_is_told_and_the_next_go_ahead_is_taken(open_desk):
    desk = open_desk()
    desk.start()
    assigned(desk)
    go(desk, 1, 3)
    assert desk.expect(NoBatch)[0] == NoBatch("worker-1.0", ALL_LANES, 1, 0, 3)
    go(desk, 1, 2)
    assert desk.expect(Pushed)[0].num_samples == 8


def test_a_worker_of_several_lanes_pushes_once_a_round_or_once_a_batch(open_desk):
    layout = Layout(ALONE.stages, 3)
    rounds, lanes = open_desk(), open_desk(sync="asp")
    for desk in (rounds, lanes):
        desk.start()
        assigned(desk, structs.replace(layout, in_rounds=desk is rounds))
    go(rounds, 1, 0)
    assert rounds.expect(Pushed)[0].lane == ALL_LANES
    for lane in range(3):
        go(lanes, 1, lane, lane=lane)
    assert sorted(lanes.expect(Pushed)[0].lane for _ in range(3)) == [0, 1, 2]
    assert (rounds.clients[0].export_dense("dense")[2], lanes.clients[0].export_dense("dense")[2]) == (1, 3)


def test_a_worker_tells_its_state_when_asked(open_desk):
    desk = open_desk()
    desk.start()
    assigned(desk)
    desk.tell(AskState())
    _, envelope = desk.expect(StageState)
    assert envelope.values == {"buffers": {}, "dense": {}}


def test_an_error_of_the_model_is_told_with_its_kind_and_raised(open_desk):
    desk = open_desk(model={"factory": f"{__name__}:Broken", "args": {}})
    desk.start()
    assigned(desk, Layout((StageLayout(0, 0, "cpu", ("worker-1.0",)),), 1))
    go(desk, 1, 0)
    failed, _ = desk.expect(Failed)
    assert (failed.worker, failed.kind) == ("worker-1.0", "ModelError")
    assert "ZeroDivisionError: too few" in failed.text
    desk.thread.join(SOON_S)
    assert isinstance(desk.errors[0], ModelError)


def test_an_error_that_is_ours_is_told_by_its_name(open_desk, monkeypatch: pytest.MonkeyPatch):
    desk = open_desk()
    monkeypatch.setattr("heterps.training.worker.core.Turns.begin_round", lambda *_: {}["nothing"])
    desk.start()
    assigned(desk)
    go(desk, 1, 0)
    failed, _ = desk.expect(Failed)
    assert failed.kind == "HeterpsError"
    assert failed.text.startswith("KeyError: 'nothing'")
    desk.thread.join(SOON_S)
    assert not isinstance(desk.errors[0], HeterpsError)


def test_values_go_on_to_the_next_stage_and_a_neighbour_that_is_silent_is_named(open_desk):
    desk = open_desk(workers={"deadline_s": 0.2})
    desk.start((0, 2))
    stages = StageLayout(0, 1, "cpu", ("worker-1.0",)), StageLayout(2, 4, "cpu", ("worker-2.0",))
    assigned(desk, Layout(stages, 2))
    go(desk, 1, 0, samples=48)
    forward, envelope = desk.expect(Forward, "worker-2.0")
    assert (forward.lane, forward.iteration, forward.num_samples, forward.samples) == (0, 1, 16, 48)
    values = envelope.values
    assert {len(value) for value in values.values() if isinstance(value, torch.Tensor)} == {8}
    failed, _ = desk.expect(Failed)
    assert failed.kind == "PeerLost"
    assert "gradients of iteration 1, lane 0, from worker-2.0" in failed.text
    desk.thread.join(SOON_S)
    assert isinstance(desk.errors[0], PeerLost)


def test_the_time_that_a_worker_computes_itself_is_not_time_that_it_waited(open_desk):
    desk = open_desk(model={"factory": f"{__name__}:Slow", "args": {}}, workers={"deadline_s": 1.0})
    desk.start((0, 1))
    stages = StageLayout(0, 0, "cpu", ("worker-1.0",)), StageLayout(1, 2, "cpu", ("worker-2.0",))
    assigned(desk, Layout(stages, 1))
    go(desk, 1, 0)
    desk.expect(Forward, "worker-2.0")
    assert "has waited" in desk.expect(Failed)[0].text
    assert time.monotonic() - Sleeps.ended_at > 2.0, "the coordinator, which may replace the other, looks sooner"


def test_a_worker_that_finds_no_data_lets_go_of_its_servers(open_desk, tmp_path: Path, monkeypatch):
    desk, closed = open_desk(), []
    monkeypatch.setattr(LocalClient, "close", lambda client: closed.append(client))
    (tmp_path / "train.parquet").unlink()
    desk.thread = threading.Thread(target=desk._run, args=(WorkerStart("worker-1.0", 0, (0,)),), daemon=True)
    desk.thread.start()
    assert desk.expect(Failed)[0].kind == "DataError"
    desk.thread.join(SOON_S)
    assert closed == desk.clients


def test_rows_of_all_lanes_of_a_round_are_asked_for_at_once(open_desk, tmp_path: Path, monkeypatch):
    pulled: list[str] = []
    pull = LocalClient.pull

    def counted(client, table, lookup, *, create=True):
        pulled.append(table)
        return pull(client, table, lookup, create=create)

    monkeypatch.setattr(LocalClient, "pull", counted)
    write_tiny(tmp_path / "train.parquet", 80)
    desk = open_desk(data=load_job("job.yaml").data.model_dump() | {"batch_size": 80})
    desk.start()
    assigned(desk, Layout(ALONE.stages, 80))
    go(desk, 1, 0)
    desk.expect(Pushed)
    assert len(pulled) == 1


def test_a_worker_ends_when_it_is_stopped_from_outside(open_desk):
    desk = open_desk()
    desk.start()
    desk.stopped.set()
    desk.thread.join(SOON_S)
    assert not desk.thread.is_alive()
    assert desk.errors == []
