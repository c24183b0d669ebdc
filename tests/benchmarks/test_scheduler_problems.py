"""The problems that schedulers are compared on can be made anywhere, always the same, and have a plan."""

from __future__ import annotations

from types import ModuleType

import pytest
from bench_file import load_bench

from heterps.config import PAPER_CLUSTER
from heterps.planning.schedulers.base import SearchBudget, search
from heterps.planning.schedulers.exact import Exact, exact_scheduler


@pytest.fixture(scope="module")
def problems() -> ModuleType:
    return load_bench("schedulers/problems.py")


def test_the_models_have_as_many_layers_as_in_the_paper(problems: ModuleType) -> None:
    layers = {model: len(problems.base_profile(model).layers) for model in problems.MODELS}
    assert layers == {"match_net": 16, "ctr_dnn": 16, "two_emb": 10, "nce": 5}


def test_every_case_has_a_proven_optimum(problems: ModuleType) -> None:
    for case in problems.CASES:
        problem = case.problem()
        assert len(problem.resources) == case.num_resources
        assert search(problem, Exact(problem, seed=0), SearchBudget(seconds=10)).proven, case.name


def test_more_resources_never_cost_more(problems: ModuleType) -> None:
    usd = [
        search(p, Exact(p, seed=0), SearchBudget()).usd
        for p in (problems.Case("ctr_dnn", n).problem() for n in (2, 8, 32))
    ]
    assert usd == sorted(usd, reverse=True)


def test_derived_resources_depend_on_the_seed_alone(problems: ModuleType) -> None:
    base = problems.base_profile("nce"), PAPER_CLUSTER
    assert problems.with_resources(*base, 8, seed=1) == problems.with_resources(*base, 8, seed=1)
    assert problems.with_resources(*base, 8, seed=1) != problems.with_resources(*base, 8, seed=2)
    assert problems.with_resources(*base, 2) == base


@pytest.mark.parametrize("limits", [(100, 8), (40, 4)])
def test_a_hundred_layers_on_eight_resources_are_planned_near_the_bound_in_rounds_with_all_facts(
    limits: tuple[int, int],
) -> None:
    problem = load_bench("schedulers/rounds.py").make_problem(100, 8, limits, 20_000.0)
    found = search(problem, exact_scheduler(problem), SearchBudget(seconds=60))
    assert found.usd <= found.bound_usd * 1.02


def test_the_seconds_and_the_bill_of_a_plan_in_rounds_are_told_by_what_they_are_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--explain", "--layers", "16", "--resources", "2", "--floors", "20000", "--whole-step", "1", "1.3"]
    monkeypatch.setattr("sys.argv", ["rounds.py", *words])
    load_bench("schedulers/rounds.py").main()
    _, *plans = capsys.readouterr().out.split("\n**")
    assert [text.partition("**")[0].rpartition(" ")[2] for text in plans] == ["1", "1.3"]
    undivided = []
    for text in plans:
        cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
        undivided.append(next(float(row[2]) for row in cells if row[:1] == ["r0"] and len(row) == 5))
        paid = [float(row[2]) for row in cells if len(row) == 3 and row[2].replace(".", "").isdigit()]
        told = float(text.partition("**: ")[2].partition(" USD")[0])
        assert sum(paid) == pytest.approx(told, abs=0.03), "the parts add up to the bill"
    assert undivided[1] == pytest.approx(1.3 * undivided[0], rel=1e-3), "cores do not divide it however many they are"
    assert "traffic between zones" in plans[1]
