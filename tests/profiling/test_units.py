"""Units as processes: what they measure, what they say when they fail, and that they leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.config import Data, Job, Model, Schema
from heterps.errors import PeerLost
from heterps.profiling import job as profile_of_job
from heterps.profiling import units as units_module
from heterps.profiling.job import profile_job
from heterps.profiling.source import ModelSource
from heterps.profiling.unit import BLOCK_BYTES, Unit, _blocks, _run_s
from heterps.profiling.units import NUM_UNITS, Units, num_cores

JOB = Job(
    model=Model(factory="ctr_dnn", args={"embedding_dim": 4, "hidden": [8]}),
    data=Data(train="none", batch_size=16, columns=Schema(dense=("a",), slots=("s", "t"))),
)
LAYERS = ["embedding", "cat", "deep.linear1", "deep.relu1", "deep.logit"]


@pytest.fixture
def shared() -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as file:
        file.truncate((1 + NUM_UNITS) * BLOCK_BYTES)
        yield file


@pytest.fixture
def units() -> Iterator[Units]:
    with Units(ModelSource(JOB, synthetic=True)) as started:
        yield started


def test_two_processes_measure_every_layer_of_a_profile_and_are_gone_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_of_job, "num_cores", lambda: 2)
    made: list[Units] = []

    class Watched(Units):
        def __init__(self, source: ModelSource) -> None:
            super().__init__(source)
            made.append(self)

    monkeypatch.setattr(profile_of_job, "Units", Watched)
    found = profile_job(JOB, ["cpu", "mine=cpu", "v100"], synthetic=True, budget_s=0)
    assert [layer.name for layer in found.layers] == LAYERS
    assert all(layer.costs["cpu"] == layer.costs["mine"] for layer in found.layers), "measured once for both"
    assert set(found.contention or {}) == {"cpu", "mine"}, "estimated devices share nothing that was measured"
    assert all(process._process.poll() is not None for process in made[0]._processes)


def test_measurements_are_times_and_a_killed_unit_is_named(units: Units) -> None:
    units.enter("embedding")
    assert units.contention is None, "nothing is measured yet"
    assert units.compute(0.0).value > 0
    assert units.move((1000, 500), 0.0).value > 0
    assert units.contention is not None
    assert units.contention >= 1
    lost = units._processes[1]._process
    lost.kill()
    with pytest.raises(
        PeerLost, match=rf"unit 2 of 2 \(process {lost.pid}\), which measures cat, ended with exit code"
    ):
        units.enter("cat")


def test_a_unit_that_cannot_make_the_model_says_why() -> None:
    source = ModelSource(JOB.model_copy(update={"model": Model(factory="no_such_model")}), synthetic=True)
    with pytest.raises(PeerLost, match=r"unit 1 of 2 .* failed with ModelError: .*no_such_model.*--units parts"):
        Units(source)


def test_a_unit_that_does_not_answer_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units_module, "START_S", 0.0)
    monkeypatch.setattr("heterps.processes.subprocess", subprocess)  # a forked process may have answered by then
    with pytest.raises(PeerLost, match=r"unit 1 of 2 .*, which makes the model, did not answer within 0 s"):
        Units(ModelSource(JOB, synthetic=True))


def test_one_core_takes_parts_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_of_job, "num_cores", lambda: 1)
    monkeypatch.setattr(profile_of_job, "Units", lambda source: pytest.fail("processes on one core"))
    heard: list[str] = []
    profile_job(JOB, ["cpu"], synthetic=True, budget_s=0, warn=heard.append)
    assert len(heard) == 1
    assert "one core" in heard[0]


@pytest.mark.parametrize(("resources", "units"), [(["v100", "a=t4"], "processes"), (["cpu"], "parts")])
def test_no_process_is_started_for_estimates_or_parts(
    resources: list[str], units: profile_of_job.UnitsFrom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_of_job, "num_cores", lambda: 2)
    monkeypatch.setattr(profile_of_job, "Units", lambda source: pytest.fail("started"))
    profile_job(JOB, resources, synthetic=True, budget_s=0, units=units)


def test_cores_are_those_this_process_may_use() -> None:
    assert 1 <= num_cores() <= (os.cpu_count() or 1)


# --- one unit, in this process ---------------------------------------------------------------------------------------


def test_a_unit_goes_through_the_layers_of_the_model_in_order(shared: BinaryIO) -> None:
    unit = Unit(ModelSource(JOB, synthetic=True), shared.fileno(), 0)
    for name in LAYERS:
        assert unit.do({"do": "next"}) == {"layer": name}
        for part in (0, 1):
            assert unit.do({"do": "compute", "part": part, "at": 0.0, "seconds": 0.0})["run_s"] > 0


def test_what_a_unit_moves_lands_in_its_own_block(shared: BinaryIO) -> None:
    data = bytes(range(256)) * 8
    shared.write(data)
    shared.flush()
    unit = Unit(ModelSource(JOB, synthetic=True), shared.fileno(), 1)
    unit.do({"do": "move", "num_bytes": 2 * len(data), "at": 0.0, "seconds": 0.0})
    shared.seek(0)
    content = shared.read()
    assert content[2 * BLOCK_BYTES : 2 * BLOCK_BYTES + len(data)] == data
    assert not any(content[BLOCK_BYTES : 2 * BLOCK_BYTES]), "the other unit's block is left alone"


@given(st.integers(1, 10 * BLOCK_BYTES))
def test_blocks_add_up_and_fit(num_bytes: int) -> None:
    sizes = list(_blocks(num_bytes))
    assert sum(sizes) == num_bytes
    assert all(0 < size <= BLOCK_BYTES for size in sizes)


def test_work_runs_three_times_at_least() -> None:
    calls: list[int] = []
    _run_s(lambda: calls.append(1), 0.0, 0.0)
    assert len(calls) == 3
