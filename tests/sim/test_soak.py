"""Whatever goes wrong in a simulated job, every batch is in every table once: faults of all kinds, drawn together.

    make soak                                   draws for hours, other faults every time
    pytest tests/sim/test_soak.py               the same few every time

A case that fails is shrunk to the fewest faults that make it fail, and printed as it is drawn, with the line that
repeats it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from any_faults import networks
from drawn_faults import SCALE, SILENCE_S, Fault, Storm, faults
from fragile import Crash
from histories import DrawnDisk, History, check_checkpoints, check_staleness
from hypothesis import given, note, settings
from hypothesis import strategies as st
from one_thread import one_torch_thread  # noqa: F401
from test_killed_servers import simulated_job
from test_killed_workers import BATCH, NUM_BATCHES, Watched, num_pushes, tables_of
from test_simulated_job import SAMPLES, changed
from tiny import JOB, write_tiny

from heterps.config import Faults, Job, load_job
from heterps.errors import PeerLost
from heterps.sim.job import SimulatedJob

Plan = tuple[tuple[int, ...], int]
Drawn = tuple[str, Plan, bool, bool, Faults, list[Fault]]
"""Policy, plan, whether servers have mirrors and checkpoints changes only, the network, faults."""
PLANS: list[Plan] = [((2,), 2), ((1,), 1), ((3,), 1), ((2, 1), 2), ((1, 2, 1), 1)]
POLICIES = ["bsp", "asp", "ssp:1", "dssp:1:3"]
FULL_EVERY = 3
NUM_DRAWN = 100 if settings.get_current_profile_name() == "fixed" else settings.default.max_examples
MOST_LANES = 9
LONGEST_S = 2000.0
"""A job that is not over so long after all faults stands still."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("soak")
    write_tiny(folder / "train.parquet", SAMPLES)
    (folder / "job.yaml").write_text(
        JOB.replace("train.parquet", str(folder / "train.parquet")).replace("  test: test.parquet\n", "")
        + "checkpoint: {every_samples: 64}\n"
    )
    return load_job(folder / "job.yaml").model_copy(update={"launcher": "local"})


_clean: dict[Plan, dict[str, Any]] = {}


def clean_tables(job: Job, plan: Plan) -> dict[str, Any]:
    """The tables of an undisturbed job in BSP."""
    if plan not in _clean:
        simulated = simulated_job(changed(job, sync="bsp", servers={"replicas": 0}), plan, Watched())
        simulated.run()
        _clean[plan] = tables_of(simulated)
        simulated.close()
    return _clean[plan]


def assert_close(tables: dict[str, Any], clean: dict[str, Any]) -> None:
    for name, expected in clean.items():
        found = tables[name]
        if isinstance(expected, tuple):
            assert found[0] == expected[0], f"other keys in {name}"
            found, expected = found[1], expected[1]
        np.testing.assert_allclose(*(np.frombuffer(each, np.float32) for each in (found, expected)), 1e-4, 1e-6)


class Case:
    """A job that is drawn, and the folder from which it goes on after an error."""

    def __init__(self, job: Job, plan: Plan, network: Faults, drawn: list[Fault], folder: Path) -> None:
        self._job, self._plan, self._network, self._drawn, self._folder = job, plan, network, drawn, folder
        self._clean = clean_tables(job, plan)

    def check(self, *, is_bounded: bool) -> None:
        """Run it while all that goes wrong, and again without, if an error has ended it; check what is promised."""
        error = self._live(self._drawn, self._network, is_bounded=is_bounded, resume=False)
        if error is None:
            return
        note(f"the job has ended: {error}")
        assert not is_bounded, f"it must get through this: {error}"
        assert re.search(r"worker-|server|coordinator|power|checkpoint", error), f"nobody is named: {error}"
        error = self._live([], Faults(), is_bounded=True, resume=True)
        assert error is None, f"it does not go on from what is there: {error}"

    def _live(self, drawn: list[Fault], network: Faults, *, is_bounded: bool, resume: bool) -> str | None:
        """Run the job to its end; return the error that has ended it before."""
        history, simulated = History(DrawnDisk()), None
        try:
            with history.recorded():
                try:
                    simulated = simulated_job(
                        self._job, self._plan, Watched(), faults=network, folder=self._folder, resume=resume,
                        journal=history.journal, silence_s=SILENCE_S,
                    )  # fmt: skip
                except PeerLost as lost:  # before it has begun
                    return str(lost)
                history.simulated = simulated
                clock = simulated.core.clock
                Storm(simulated, history, is_bounded=is_bounded).draw_near(drawn)
                error = run(simulated, history)
                check_staleness(self._job, simulated)
                if error is None:
                    assert len(history.done) + clock == NUM_BATCHES, "a batch was lost or doubled"
                    self._check_end(simulated)
        finally:
            if simulated is not None:
                simulated.close()
        check_checkpoints(self._folder, BATCH)
        return error

    def _check_end(self, simulated: SimulatedJob) -> None:
        progress, tables = simulated.core.progress, tables_of(simulated)
        assert (progress.samples, simulated.core.clock) == (SAMPLES, NUM_BATCHES), "a batch was lost or doubled"
        assert num_pushes(simulated) == {NUM_BATCHES}, "an update was lost or doubled"
        is_scaled = any(fault.kind == SCALE for fault in self._drawn)
        lanes = 1 if simulated.layout.in_rounds else max(simulated.layout.num_lanes, MOST_LANES if is_scaled else 0)
        assert progress.repeated_samples <= progress.recoveries * lanes * BATCH
        if self._job.sync.in_rounds and is_scaled:  # gradients are summed in another order
            assert_close(tables, self._clean)
        elif self._job.sync.in_rounds:
            assert tables == self._clean, "BSP is equal to the bit"


def run(simulated: SimulatedJob, history: History) -> str | None:
    """Until the job is over; return the error that has ended it, or that ends it now because the power fails."""
    until_s = simulated.network.now_s + LONGEST_S
    while not simulated.core.is_over and simulated.failed is None:
        try:
            simulated.run(until_s)
            is_done = simulated.core.is_over or simulated.failed is not None
            assert is_done, f"it stands still, and waits for {', '.join(simulated.core.flow.waited_for)}"
        except Crash:
            if history.disk.is_crashed:
                history.disk.lose_power()
                return "the power failed"
            simulated.coordinator.is_busy = False
            simulated.coordinator.kill()
    return simulated.failed


def drawn_case(*, is_bounded: bool) -> st.SearchStrategy[Drawn]:
    return st.tuples(
        st.sampled_from(POLICIES),
        st.sampled_from(PLANS),
        st.booleans(),
        st.booleans(),
        networks(is_bounded=is_bounded),
        faults(is_bounded=is_bounded),
    )


def check(tiny: Job, case: Drawn, *, is_bounded: bool) -> None:
    policy, plan, is_mirrored, saves_changes, network, drawn = case
    folder = Path(tempfile.mkdtemp(dir=Path(tiny.data.train).parent))
    job = changed(
        tiny,
        sync=policy,
        workers={"backoff_s": 0.05, "replacements": 50},
        servers={"replicas": int(is_mirrored)},
        checkpoint={"every_samples": 64, "full_every": FULL_EVERY if saves_changes else 1},
    )
    try:
        Case(job, plan, network, drawn, folder).check(is_bounded=is_bounded)
    finally:
        shutil.rmtree(folder)


@pytest.mark.timeout(0 if NUM_DRAWN > 1000 else 600)
@settings(max_examples=NUM_DRAWN)
@given(case=drawn_case(is_bounded=True))
def test_a_job_gets_through_bounded_faults(tiny: Job, case: Drawn) -> None:
    check(tiny, case, is_bounded=True)


@pytest.mark.timeout(0 if NUM_DRAWN > 1000 else 600)
@settings(max_examples=NUM_DRAWN)
@given(case=drawn_case(is_bounded=False))
def test_a_job_is_safe_whatever_happens_and_goes_on_from_what_is_there(tiny: Job, case: Drawn) -> None:
    check(tiny, case, is_bounded=False)
