"""A whole job on a simulated clock: the coordinator, workers and servers of real runs, in one thread, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_thread import one_torch_thread  # noqa: F401
from tiny import JOB, write_tiny

from heterps.config import Job, load_job
from heterps.errors import ConfigError
from heterps.launch.inline import InlineFleet
from heterps.planning.inline import unpredicted_plan
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.sim.job import Finish, SimulatedJob
from heterps.sim.pump import SimulatedPump
from heterps.training.coordinator.coordinator import train_staged
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer
from heterps.training.worker.core import Turn

SAMPLES = 320


class Steps(Observer):
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.times: list[float] = []

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        self.losses.append(loss)
        self.times.append(seconds)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "train.parquet", SAMPLES)
    write_tiny(tmp_path / "test.parquet", 20)
    (tmp_path / "job.yaml").write_text(JOB)
    return load_job("job.yaml").model_copy(update={"launcher": "local"})


def changed(job: Job, **fields: Any) -> Job:
    return Job.model_validate(job.model_dump() | fields)


def plan_of(counts: tuple[int, ...], servers: int) -> Plan:
    """Stages that begin at layers 0, 2 and 4 of the tiny job's five."""
    firsts = [0, 2, 4][: len(counts)]
    lasts = [*(first - 1 for first in firsts[1:]), 4]
    stages = tuple(
        Stage(first=f, last=last, resource="cpu", count=n) for f, last, n in zip(firsts, lasts, counts, strict=True)
    )
    return Plan(
        method="test", stages=stages, servers=PlannedServers(resource="cpu", count=servers), throughput=0, hours=0,
        usd=0, bottleneck="",
    )  # fmt: skip


def slower_by_number(worker: str, turn: Turn, now: float) -> float:
    """The second worker of a stage takes twice as long as the first."""
    return now + 0.01 * (1 + int(worker[-1])) * (2 if turn.does == "loss" else 1)


def simulate(
    job: Job, counts: tuple[int, ...], servers: int, finish: Finish = slower_by_number, **more: Any
) -> tuple[Steps, SimulatedJob]:
    steps = Steps()
    simulated = SimulatedJob(job, plan_of(counts, servers), finish, observer=steps, **more)
    simulated.run()
    assert simulated.core.is_over
    assert simulated.failed is None
    simulated.close()
    return steps, simulated


def trained(simulated: SimulatedJob) -> dict[str, bytes]:
    """Every parameter and row, and what optimizers keep of them."""
    snapshot = simulated.model.snapshot(simulated.core.clock, SAMPLES, {})
    found = {name: array.tobytes() for name, array in snapshot.dense.items() if not name.startswith("random")}
    for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
        order = np.argsort(table.keys)
        found |= {f"{name}.{part}": getattr(table, part)[order].tobytes() for part in ("keys", "values", "state")}
    return found


def inline_losses(job: Job) -> list[float]:
    alone, steps = changed(job, launcher="inline", threads=1), Steps()
    run = Run(Path("inline"))
    run.create(alone)
    fleet = InlineFleet(alone, None)
    train_staged(
        alone, run, unpredicted_plan(alone.cluster, num_cores=1), fleet, resume=False, observer=steps, stop=lambda: None
    )
    fleet.close()
    return steps.losses


def test_three_stages_five_workers_and_three_servers_train_in_one_thread_as_one_process_does(job: Job) -> None:
    before = threading.active_count()
    most: list[int] = []

    def finish(worker: str, turn: Turn, now: float) -> float:
        most.append(threading.active_count())
        return slower_by_number(worker, turn, now)

    steps, _ = simulate(job, (2, 2, 1), 3, finish, latency_s=0.001)
    assert max(most) == before, "nothing but this thread"
    assert steps.losses == pytest.approx(inline_losses(job), rel=1e-5)


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:1", "dssp:1:3"])
def test_a_seed_reproduces_a_job_to_the_bit(job: Job, sync: str) -> None:
    (one, state), (other, again) = (simulated_with_state(changed(job, sync=sync)) for _ in range(2))
    assert one.losses == other.losses
    assert one.times == other.times
    assert state == again


def simulated_with_state(job: Job) -> tuple[Steps, dict[str, bytes]]:
    steps = Steps()
    simulated = SimulatedJob(job, plan_of((2, 2, 1), 3), slower_by_number, observer=steps, latency_s=0.001, seed=7)
    simulated.run()
    state = trained(simulated)
    simulated.close()
    return steps, state


def test_every_batch_is_trained_once_whatever_the_policy(job: Job) -> None:
    for sync in ("asp", "ssp:0", "dssp:1:3"):
        steps, simulated = simulate(changed(job, sync=sync), (3,), 2)
        assert len(steps.losses) == SAMPLES // 16
        assert simulated.core.progress.samples == SAMPLES


def test_a_bound_holds_on_the_simulated_clock_and_a_fast_worker_waits_for_it(job: Job) -> None:
    def unequal(worker: str, turn: Turn, now: float) -> float:
        del turn
        return now + (1.0 if worker.endswith("0") else 4.0)

    one_lane = {"lanes": 2}
    _, free = simulate(changed(job, sync="asp", workers=one_lane), (2,), 1, unequal)
    _, bound = simulate(changed(job, sync="ssp:1", workers=one_lane), (2,), 1, unequal)
    assert max(free.core.flow.leads.values()) > 1
    assert max(bound.core.flow.leads.values()) == 1
    assert bound.network.now_s > free.network.now_s


def test_a_round_takes_the_slowest_worker_and_what_messages_and_servers_take(job: Job) -> None:
    seconds: Callable[[str, Turn, float], float] = lambda worker, turn, now: now + (2.0 if worker[-1] == "1" else 1.0)  # noqa: E731
    quick, _ = simulate(job, (2,), 1, seconds)
    assert np.diff(quick.times) == pytest.approx(2.0)
    late, _ = simulate(job, (2,), 1, seconds, latency_s=0.25)
    assert np.diff(late.times) == pytest.approx(2.0 + 6 * 0.25), "Go, pull, rows, push, acknowledged, Pushed"
    busy, _ = simulate(job, (2,), 1, seconds, server_s=0.5)
    assert np.diff(busy.times).min() >= 2.5


def test_an_all_reduce_is_refused(job: Job) -> None:
    with pytest.raises(ConfigError, match="simulated workers keep dense parameters on servers"):
        SimulatedJob(changed(job, workers={"dense": "all_reduce"}), plan_of((2,), 1), slower_by_number)


@pytest.mark.parametrize("sync", ["asp", "ssp:1", "ssp:3", "dssp:1:3"])
def test_a_turn_begins_when_its_rows_have_come_also_of_a_lane_that_leads(
    job: Job, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a worker waited inside a turn")

    monkeypatch.setattr(SimulatedPump, "wait", refuse)

    def unequal(worker: str, turn: Turn, now: float) -> float:
        del turn
        return now + (1.0 if worker.endswith("0") else 4.0)

    steps, _ = simulate(changed(job, sync=sync, workers={"lanes": 2}), (2,), 1, unequal, latency_s=0.25)
    assert len(steps.losses) == SAMPLES // 16
