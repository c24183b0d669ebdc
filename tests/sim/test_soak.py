"""Whoever dies in a simulated job, every batch is in every table once: deaths of all kinds, drawn together.

    make soak                                   draws for hours, other deaths every time
    pytest tests/sim/test_soak.py               the same few every time

A case that fails is shrunk to the fewest deaths that make it fail, and printed as it is drawn.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_thread import one_torch_thread  # noqa: F401
from test_killed_servers import simulated_job
from test_killed_workers import BATCH, NUM_BATCHES, Watched, kill, num_pushes, tables_of
from test_simulated_job import SAMPLES, changed
from tiny import JOB, write_tiny

from heterps.config import Job, load_job
from heterps.sim.job import SimulatedJob

Plan = tuple[tuple[int, ...], int]
PLANS: list[Plan] = [((2,), 2), ((1,), 1), ((3,), 1), ((2, 1), 2), ((1, 2, 1), 1)]
POLICIES = ["bsp", "asp", "ssp:1", "dssp:1:3"]
LAST_S = 4.0
"""Until when somebody dies; an undisturbed job lasts from one to three seconds."""
NUM_DRAWN = 20 if settings.get_current_profile_name() == "fixed" else settings.default.max_examples


class Event(NamedTuple):
    """The worker with a number, or the coordinator, dies so many seconds after the job began."""

    at_s: float
    kind: str
    number: int


def events(*kinds: str) -> st.SearchStrategy[list[Event]]:
    drawn = st.builds(Event, st.floats(0.0, LAST_S), st.sampled_from(kinds), st.integers(0, 4))
    return st.lists(drawn, max_size=5)


def happen(simulated: SimulatedJob, event: Event) -> None:
    if simulated.core.is_over:
        return
    if event.kind == "worker":
        workers = simulated.layout.workers
        kill(simulated, workers[event.number % len(workers)])
    else:
        simulated.kill_coordinator()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("soak")
    write_tiny(folder / "train.parquet", SAMPLES)
    (folder / "job.yaml").write_text(
        JOB.replace("train.parquet", str(folder / "train.parquet")).replace("  test: test.parquet\n", "")
    )
    return load_job(folder / "job.yaml").model_copy(update={"launcher": "local"})


_clean: dict[Plan, object] = {}


def clean_tables(job: Job, plan: Plan) -> object:
    """The tables of an undisturbed job in BSP."""
    if plan not in _clean:
        simulated = simulated_job(changed(job, sync="bsp"), plan, Watched())
        simulated.run()
        _clean[plan] = tables_of(simulated)
        simulated.close()
    return _clean[plan]


def check(job: Job, plan: Plan, drawn: list[Event]) -> None:
    """Run a job while that goes wrong, and check all that is promised of it."""
    simulated = simulated_job(job, plan, Watched())
    began_s = simulated.network.now_s
    for event in drawn:
        simulated.network.call_at(began_s + event.at_s, partial(happen, simulated, event))
    try:
        simulated.run()
        assert simulated.failed is None
        assert simulated.core.is_over, "it stands still"
        progress, tables = simulated.core.progress, tables_of(simulated)
        assert (progress.samples, simulated.core.clock) == (SAMPLES, NUM_BATCHES), "a batch was lost or doubled"
        assert num_pushes(simulated) == {NUM_BATCHES}, "an update was lost or doubled"
        lanes = 1 if simulated.layout.in_rounds else simulated.layout.num_lanes
        assert progress.repeated_samples <= progress.recoveries * lanes * BATCH
        if job.sync.bound is not None:
            assert max(simulated.core.flow.leads.values()) <= job.sync.bound, "somebody was too far ahead"
        if job.sync.in_rounds:
            assert tables == clean_tables(job, plan), "BSP is equal to the bit"
    finally:
        simulated.close()


@pytest.mark.timeout(3600)
@settings(max_examples=NUM_DRAWN)
@given(
    policy=st.sampled_from(POLICIES),
    plan=st.sampled_from(PLANS),
    drawn=events("worker", "coordinator"),
)
def test_whoever_is_killed(tiny: Job, policy: str, plan: Plan, drawn: list[Event]) -> None:
    job = changed(tiny, sync=policy, workers={"backoff_s": 0.05, "replacements": 50})
    check(job, plan, drawn)
