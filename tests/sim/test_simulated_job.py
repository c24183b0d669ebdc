"""A whole job on a simulated clock: the coordinator, workers and servers of real runs, in one thread, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from followers import drifting, watch
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


@pytest.mark.parametrize("freeze", [["embedding", "deep.linear1.*"], ["deep.logit.*"], ["embedding"]])
def test_a_job_that_starts_from_another_run_and_freezes_layers_trains_as_one_process_does(
    job: Job, freeze: list[str]
) -> None:
    fresh = inline_losses(job)
    Path("inline").rename("before")
    started = changed(job, start={"model": "before"}, optimizers={"freeze": freeze})
    steps, _ = simulate(started, (2, 2, 1), 3, latency_s=0.001)
    losses = inline_losses(started)
    assert steps.losses == pytest.approx(losses, rel=1e-5)
    assert losses[0] < fresh[0]


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_simulated_job_is_followed_and_learns_the_same(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    write_tiny(tmp_path / "train.parquet", SAMPLES, **drifting(SAMPLES))
    job = changed(job, sync=sync, tables={"eviction": {"max_age": 6}})
    alone, _ = simulate(job, (2, 1), 2)
    follower, steps = watch(monkeypatch), Steps()
    simulated = SimulatedJob(job, plan_of((2, 1), 2), slower_by_number, observer=steps, folder=tmp_path / "run")
    simulated.coordinator.perform(simulated.core.follow(0.02, 0.0))
    simulated.run()
    follower.compare(simulated.model.snapshot(simulated.core.clock, SAMPLES, {}))
    simulated.close()
    assert len(follower.versions) > 2
    assert follower.gone
    if sync == "bsp":
        assert steps.losses == alone.losses


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
    assert np.diff(late.times) == pytest.approx(2.0 + 4 * 0.25), "Go and rows, push, acknowledged, Pushed"
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


def test_fitted_shares_give_a_slow_worker_fewer_samples_and_learn_what_one_worker_learns(job: Job) -> None:
    """The second worker takes three times as long for a sample. Every round is still the mean over all its samples."""
    job = changed(job, data=job.data.model_dump() | {"epochs": 5})
    taken: dict[str, list[int]] = {}

    def finish(worker: str, turn: Turn, now: float) -> float:
        taken.setdefault(worker, []).append(turn.here)
        return now + 0.001 * turn.here * (1 + 2 * int(worker[-1]))

    alone, _ = simulate(job, (1,), 1, finish)
    fitted = changed(job, workers={"shares": "fitted"})
    taken.clear()
    both, simulated = simulate(fitted, (2,), 2, finish)
    assert both.losses == pytest.approx(alone.losses, rel=1e-4)
    fast, slow = taken["worker-1.0"], taken["worker-1.1"]
    assert sum(fast) + sum(slow) == 5 * SAMPLES
    assert fast[0] == slow[0]
    assert 2 <= fast[-2] / slow[-2] <= 4
    assert len(simulated.core.layout.shares) == 2
    equal, _ = simulate(job, (2,), 2, finish)
    assert both.times[-1] < 0.75 * equal.times[-1], "all are done at the same time, so rounds are shorter"


@pytest.mark.parametrize(
    ("sync", "counts", "says"), [("ssp:2", (2,), "with sync ssp:2"), ("bsp", (1, 1), "all 2 stages")]
)
def test_shares_that_cannot_be_fitted_are_refused(job: Job, sync: str, counts: tuple[int, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"workers.shares: .*{says}"):
        simulate(changed(job, workers={"shares": "fitted"}, sync=sync), counts, 1)
