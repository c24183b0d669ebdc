"""Every method side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from planning_oracle import small_problem

from heterps import planning
from heterps.errors import ConfigError
from heterps.planning import api
from heterps.planning.api import PlanComparison
from heterps.planning.schedulers import METHODS

SMALL = small_problem()


def compare(
    method: str = "exact", *, every: bool = True, on_start: Callable[[str], None] = lambda _: None
) -> PlanComparison:
    others: Literal["all", "quick"] = "all" if every else "quick"
    return planning.compare(SMALL, method, others=others, evaluations=500, seconds=1.0, on_start=on_start)


def test_every_method_is_there_once_in_order_and_told_before_it_starts() -> None:
    heard: list[str] = []
    compared = compare("greedy", on_start=heard.append)
    assert [option.method for option in compared.options] == list(METHODS)
    assert sorted(heard) == sorted(METHODS)
    assert heard[0] == "greedy"


def test_without_every_only_quick_methods_and_the_one_asked_for_are_there() -> None:
    quick = [name for name, method in METHODS.items() if method.quick]
    assert [option.method for option in compare(every=False).options] == quick
    assert {option.method for option in compare("brute", every=False).options} == {*quick, "brute"}


@pytest.mark.parametrize("method", ["rl", "rl-scratch", "rl-rnn", "rl-paper", "changes", "genetic", "bayes"])
def test_any_whole_number_from_0_is_a_seed_and_no_other(method: str) -> None:
    inputs = (SMALL.profile, SMALL.cluster)
    asked = {"throughput": SMALL.throughput, "samples": SMALL.samples, "evaluations": 40}
    assert planning.plan(*inputs, method=method, seed=1 << 70, **asked).method == method
    with pytest.raises(ConfigError, match=r"a seed is a whole number of at least 0 \(got -1\)"):
        planning.plan(*inputs, method=method, seed=-1, **asked)


def test_the_trace_of_every_search_falls_to_the_cost_of_its_plan() -> None:
    for option in compare().options:
        if option.plan is None:
            assert option.reason
            continue
        costs = [point.usd for point in option.trace]
        assert costs == sorted(costs, reverse=True)
        assert costs[-1] == pytest.approx(option.plan.usd)
        assert option.trace[-1].evaluations <= option.plan.evaluations <= 500


def test_an_optimum_that_another_method_proved_later_is_what_all_are_measured_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "QUICK_S", 0.0)  # no time to prove it beside the method asked for
    compared = compare("gpu")
    exact = next(option.plan for option in compared.options if option.method == "exact")
    assert exact is not None
    assert exact.gap == 0
    assert compared.chosen.gap == pytest.approx(compared.chosen.usd / exact.usd - 1)
    assert all(option.plan.gap is not None for option in compared.options if option.plan)
    chosen = next(option.plan for option in compared.options if option.method == "gpu")
    assert chosen == compared.chosen
