from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest
from realistic import ctr_problem

from heterps.planning.cost import Problem
from heterps.planning.provisioners.exact import exact
from heterps.planning.schedulers import bayes
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.bayes import BATCH, INFEASIBLE, MOST_TRIALS, PATIENCE, Bayes
from heterps.planning.schedulers.brute import Brute
from heterps.profiling.profile import Profile


def test_the_optimum_of_four_layers_is_found() -> None:
    problem = ctr_problem(4, (480, 32))
    found = search(problem, Bayes(problem, seed=0), SearchBudget(evaluations=16))
    assert found.usd == pytest.approx(search(problem, Brute(problem, seed=0), SearchBudget()).usd, rel=1e-9)


def test_it_learns_cheaper_than_chance() -> None:
    problem = ctr_problem(16, (480, 32))
    found = search(problem, Bayes(problem, seed=0), SearchBudget(evaluations=100))
    random = np.random.default_rng(0).integers(0, 2, (1_000, 16)).astype(np.int16)
    assert found.usd < exact(problem, random).usd.min()


def test_it_ends_by_itself_after_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bayes, "MOST_TRIALS", 30)
    problem = ctr_problem(16, (480, 32))
    scheduler = Bayes(problem, seed=0)
    assert search(problem, scheduler, SearchBudget()).finished
    assert len(scheduler._study.trials) == 30


def test_it_ends_by_itself_when_nothing_is_new() -> None:
    problem = ctr_problem(3, (480, 32))
    scheduler = Bayes(problem, seed=0)
    found = search(problem, scheduler, SearchBudget())
    assert found.finished
    assert found.evaluations <= 2**3
    last = [tuple(trial.params.values()) for trial in scheduler._study.trials]
    assert set(last[-PATIENCE * BATCH :]) <= set(last[: -PATIENCE * BATCH])
    assert len(last) < MOST_TRIALS


def test_more_layers_have_fewer_trials() -> None:
    few, many = (Bayes(ctr_problem(num_layers, (480, 32)), seed=0) for num_layers in (16, 64))
    assert few._most_trials == 4 * many._most_trials


def test_the_same_seed_has_the_same_trace_and_another_seed_another() -> None:
    problem = ctr_problem(16, (480, 32))

    def trace(seed: int) -> list[tuple[int, float]]:
        found = search(problem, Bayes(problem, seed), SearchBudget(evaluations=60))
        return [(point.evaluations, point.usd) for point in found.trace]

    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


def test_a_layer_is_only_put_where_it_can_run() -> None:
    problem = ctr_problem(4, (480, 32))
    layers = list(problem.profile.layers)
    layers[0] = layers[0].model_copy(update={"costs": {"cpu": layers[0].costs["cpu"]}})
    layers[2] = layers[2].model_copy(update={"costs": {"v100": layers[2].costs["v100"]}})
    profile = Profile(model="m", batch_size=4096, layers=tuple(layers))
    scheduler = Bayes(Problem(profile, problem.cluster, 20_000, samples=1e9), seed=0)
    schedules = scheduler.propose()
    assert schedules is not None
    assert set(schedules[:, 0].tolist()) == {0}
    assert set(schedules[:, 2].tolist()) == {1}


def test_what_is_told_is_finite_and_the_infeasible_is_worse_the_further_it_is() -> None:
    problem = ctr_problem(16, (20, 2), floor=100_000)
    scheduler = Bayes(problem, seed=0)
    for _ in range(4):
        schedules = scheduler.propose()
        assert schedules is not None
        scheduler.feedback(schedules, exact(problem, schedules))
    told = [trial for trial in scheduler._study.trials if trial.value is not None]
    assert len(told) == 4 * BATCH
    for trial in told:
        bills = exact(problem, np.array([[trial.params[f"{layer}"] for layer in range(16)]], np.int16))
        assert trial.value is not None
        if bills.violation[0] > 0:
            assert trial.value == INFEASIBLE + bills.violation[0]
        else:
            assert trial.value == pytest.approx(np.log(bills.usd[0]))


def test_it_is_silent_and_leaves_optunas_verbosity_alone(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    before = logging.getLogger("optuna").level
    problem = ctr_problem(6, (480, 32))
    search(problem, Bayes(problem, seed=0), SearchBudget(evaluations=40))
    assert logging.getLogger("optuna").level == before
    assert capfd.readouterr() == ("", "")
    assert not [warning for warning in recwarn if "optuna" in str(warning.filename)]


def test_optuna_is_loaded_by_this_method_only() -> None:
    code = "import sys, heterps.planning.schedulers; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
