"""Whatever goes wrong in a simulated job, every batch is in every table once: faults of all kinds, drawn together.

    make soak                                   draws for hours, other faults every time
    pytest tests/sim/test_soak.py               the same few every time

A case that fails is shrunk to the fewest faults that make it fail, and printed as it is drawn, with the line that
repeats it.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from any_faults import networks
from drawn_faults import SILENCE_S, Fault, Storm, faults
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
PLANS: list[Plan] = [((2,), 2), ((1,), 1), ((3,), 1), ((2, 1), 2), ((1, 2, 1), 1)]
POLICIES = ["bsp", "asp", "ssp:1", "dssp:1:3"]
NUM_DRAWN = 50 if settings.get_current_profile_name() == "fixed" else settings.default.max_examples
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


_clean: dict[Plan, object] = {}


def clean_tables(job: Job, plan: Plan) -> object:
    """The tables of an undisturbed job in BSP."""
    if plan not in _clean:
        simulated = simulated_job(changed(job, sync="bsp", servers={"replicas": 0}), plan, Watched())
        simulated.run()
        _clean[plan] = tables_of(simulated)
        simulated.close()
    return _clean[plan]


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
        lanes = 1 if simulated.layout.in_rounds else simulated.layout.num_lanes
        assert progress.repeated_samples <= progress.recoveries * lanes * BATCH
        if self._job.sync.in_rounds:
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


def drawn_case(*, is_bounded: bool) -> st.SearchStrategy[tuple[str, Plan, bool, Faults, list[Fault]]]:
    return st.tuples(
        st.sampled_from(POLICIES),
        st.sampled_from(PLANS),
        st.booleans(),
        networks(is_bounded=is_bounded),
        faults(is_bounded=is_bounded),
    )


def check(tiny: Job, case: tuple[str, Plan, bool, Faults, list[Fault]], *, is_bounded: bool) -> None:
    policy, plan, is_mirrored, network, drawn = case
    workers = {"backoff_s": 0.05, "replacements": 50}
    job = changed(tiny, sync=policy, workers=workers, servers={"replicas": int(is_mirrored)})
    folder = Path(tempfile.mkdtemp(dir=Path(tiny.data.train).parent))
    try:
        Case(job, plan, network, drawn, folder).check(is_bounded=is_bounded)
    finally:
        shutil.rmtree(folder)


@pytest.mark.timeout(math.inf if NUM_DRAWN > 1000 else 600)
@settings(max_examples=NUM_DRAWN)
@given(case=drawn_case(is_bounded=True))
def test_a_job_gets_through_bounded_faults(tiny: Job, case: tuple[str, Plan, bool, Faults, list[Fault]]) -> None:
    check(tiny, case, is_bounded=True)


@pytest.mark.timeout(math.inf if NUM_DRAWN > 1000 else 600)
@settings(max_examples=NUM_DRAWN)
@given(case=drawn_case(is_bounded=False))
def test_a_job_is_safe_whatever_happens_and_goes_on_from_what_is_there(
    tiny: Job, case: tuple[str, Plan, bool, Faults, list[Fault]]
) -> None:
    check(tiny, case, is_bounded=False)
