"""Many runs: the same in processes as here, refused before any is trained, and told while they go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.config import load_job
from heterps.errors import ConfigError, DataError
from heterps.processes import Child
from heterps.sim import Scenario
from heterps.sim.course import Course, Point
from heterps.sim.runs import train_all
from heterps.sim.scenario import ENDLESS
from heterps.sim.variants import Variant, parse_variants

TWO = Scenario(workers=(1.0, 2.3), iterations=ENDLESS, jitter=0.2, seed=7)
COURSE = Course(points=3)


def test_runs_in_processes_are_those_made_here_in_the_same_order(tiny_job: Path) -> None:
    job, variants = load_job(tiny_job), parse_variants("asp+compensated,bsp")
    told: list[tuple[Variant, int, Point]] = []
    here = train_all(job, TWO, variants, num_seeds=2, course=COURSE)
    there = train_all(
        job, TWO, variants, num_seeds=2, course=COURSE, num_processes=2,
        on_point=lambda *point: told.append(point),
    )  # fmt: skip
    assert there == here
    assert [(run.variant.label, run.seed) for run in here] == [
        ("asp+compensated:0.04", 7), ("asp+compensated:0.04", 8), ("bsp", 7), ("bsp", 8),
    ]  # fmt: skip
    assert {run.variant: [p for v, s, p in told if (v, s) == (run.variant, run.seed)] for run in here} == {
        run.variant: list(run.points) for run in here
    }


def test_points_are_told_as_they_come(tiny_job: Path) -> None:
    told: list[tuple[str, int]] = []
    (run,) = train_all(
        load_job(tiny_job), TWO, parse_variants("asp"), course=COURSE,
        on_point=lambda variant, seed, _: told.append((variant.label, seed)),
    )  # fmt: skip
    assert told == [("asp", 7)] * len(run.points)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_data_that_is_not_there_is_the_same_error_in_a_process(tiny_job: Path, num_processes: int) -> None:
    job = load_job(tiny_job)
    (tiny_job.parent / "train.parquet").unlink()
    with pytest.raises(DataError, match=r"train\.parquet"):
        train_all(job, TWO, parse_variants("asp,bsp"), course=COURSE, num_processes=num_processes)


def test_what_does_not_fit_is_refused_before_anything_is_trained(tiny_job: Path) -> None:
    told: list[int] = []
    with pytest.raises(ConfigError, match="at most 1 backup workers"):
        train_all(
            load_job(tiny_job), TWO, parse_variants("asp,bsp+backup:2"), on_point=lambda *_: told.append(1)
        )  # fmt: skip
    assert told == []


def test_whatever_interrupts_the_runs_leaves_no_process_behind(tiny_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Child] = []

    class Kept(Child):
        def __init__(self, name: str, module: str) -> None:
            super().__init__(name, module)
            started.append(self)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heterps.sim.runs.Child", Kept)
    with pytest.raises(KeyboardInterrupt):
        train_all(
            load_job(tiny_job), TWO, parse_variants("asp,bsp,ssp:3"), course=COURSE, num_processes=2, on_point=interrupt
        )  # fmt: skip
    assert len(started) == 2
    assert all(child.ended is not None for child in started)


def test_skipping_batches_is_for_policies_that_whole_jobs_play(tiny_job: Path) -> None:
    job = load_job(tiny_job).model_copy(update={"on_not_finite": "skip"})
    assert train_all(job, TWO, parse_variants("asp,bsp"), course=COURSE)[0].failed is None
    with pytest.raises(ConfigError, match="on_not_finite: skip is for whole jobs"):
        train_all(job, TWO, parse_variants("asp+compensated,bsp"), course=COURSE)
