"""The on-line phase, with trials that follow a cost model of their own."""

from __future__ import annotations

import math

import pytest
from realistic import ctr_problem

from heterps.errors import ConfigError, PeerLost, PlanInfeasible
from heterps.planning.bill import bill
from heterps.planning.cost import Problem, stage_terms
from heterps.planning.online import NOISE, Measurement, Trials, measure
from heterps.planning.optimum import cheapest
from heterps.planning.plan import Plan
from heterps.planning.trial import StageSeconds, Trial, TrialStopped
from heterps.profiling.profile import Profile

BUDGET = {"evaluations": 600, "seconds": None}


def slower(profile: Profile, resource: str, factor: float) -> Profile:
    """All seconds of a resource, times the factor."""
    layers = []
    for layer in profile.layers:
        cost = layer.costs[resource]
        update = {name: getattr(cost, name) * factor for name in ("compute_s", "sync_s", "input_s")}
        layers.append(layer.model_copy(update={"costs": {**layer.costs, resource: cost.model_copy(update=update)}}))
    return profile.model_copy(update={"layers": tuple(layers)})


class Machines:
    """Trials on machines that are as `truth` says, of whose pace whole runs reach a part."""

    def __init__(self, truth: Problem, reach: float = 1.0) -> None:
        self.truth, self.reach = truth, reach
        self.plans: list[Plan] = []

    def __call__(self, plan: Plan) -> Trial:
        self.plans.append(plan)
        stages = []
        for stage in plan.stages:
            terms = stage_terms(self.truth, stage.first, stage.last, self.truth.resources.index(stage.resource))
            compute_s, busy_s = terms.compute_s(stage.count), terms.busy_s(stage.count)
            stages.append(StageSeconds(compute_s, busy_s - compute_s))
        throughput = bill(self.truth, plan.stages, plan.servers.count).throughput * self.reach
        return Trial(plan, throughput, tuple(stages), num_batches=8, seconds=1.0)


def with_profile(problem: Problem, profile: Profile) -> Problem:
    return Problem(profile, problem.cluster, problem.throughput, problem.samples, problem.epochs)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return ctr_problem(8, (400, 32), floor=80_000)


@pytest.fixture(scope="module")
def slow_gpus(problem: Problem) -> tuple[Machines, Measurement]:
    """V100s turn out to be three times as slow as the profile says."""
    machines = Machines(with_profile(problem, slower(problem.profile, "v100", 3.0)))
    return machines, measure(problem, machines, trials=8, seed=0, **BUDGET)


def test_right_predictions_are_confirmed_and_the_optimum_is_found(problem: Problem) -> None:
    found = measure(problem, Machines(problem), trials=6, **BUDGET)
    assert found.error_before == pytest.approx(0, abs=1e-6)
    assert found.error_after == pytest.approx(0, abs=1e-3)
    assert found.reached == pytest.approx(1)
    assert found.best.usd == pytest.approx(found.optimum.usd, rel=0.02)
    assert all(attempt.keeps_floor for attempt in found.attempts)


def test_the_corrected_profile_predicts_what_was_measured(slow_gpus: tuple[Machines, Measurement]) -> None:
    _, found = slow_gpus
    assert found.error_before > 0.3
    assert found.error_after < 0.05
    assert abs(found.attempts[-1].error) < abs(found.attempts[0].error)
    visited = [cost for layer in found.profile.layers for cost in layer.costs.values() if cost.corrected]
    assert visited


def test_a_plan_below_the_floor_is_tried_again_with_the_counts_of_the_corrected_profile(
    slow_gpus: tuple[Machines, Measurement],
) -> None:
    _, found = slow_gpus
    first, second = found.attempts[:2]
    assert not first.keeps_floor
    assert [(s.first, s.resource) for s in first.plan.stages] == [(s.first, s.resource) for s in second.plan.stages]
    assert first.plan.units["v100"] < second.plan.units["v100"]
    assert second.keeps_floor


def test_the_best_plan_is_the_cheapest_measured_one_that_keeps_the_floor(
    slow_gpus: tuple[Machines, Measurement], problem: Problem
) -> None:
    _, found = slow_gpus
    keeping = [attempt for attempt in found.attempts if attempt.keeps_floor]
    assert found.best.usd == min(attempt.usd for attempt in keeping)
    assert found.best.throughput >= problem.throughput * (1 - NOISE)
    plan = found.plan
    assert (plan.throughput, plan.usd, plan.measured) == (found.best.throughput, found.best.usd, "trial")
    assert plan.usd == pytest.approx(problem.samples / plan.throughput / 3600 * plan.usd_per_hour(problem.cluster))


def test_no_plan_is_measured_twice_and_no_more_than_asked(slow_gpus: tuple[Machines, Measurement]) -> None:
    machines, found = slow_gpus
    keys = [(plan.stages, plan.servers) for plan in machines.plans]
    assert len(keys) == len(set(keys)) == len(found.attempts) <= 8


def test_a_trial_keeps_the_floor_up_to_the_noise_of_a_trial_and_no_further(problem: Problem) -> None:
    plan = cheapest(problem)
    assert plan is not None
    trials = Trials(problem, Machines(problem), 1, "rl", lambda _number, _plan: None)
    least = problem.throughput * (1 - NOISE)
    for throughput, keeps_floor in ((least, True), (math.nextafter(least, 0), False), (problem.throughput, True)):
        judged = trials._judged(plan, Trial(plan, throughput, (), num_batches=8, seconds=1.0))
        assert judged.keeps_floor == keeps_floor
        assert judged.hours == pytest.approx(problem.samples * problem.epochs / throughput / 3600)


def test_counts_make_up_for_what_whole_runs_do_not_reach(problem: Problem) -> None:
    found = measure(problem, Machines(problem, reach=0.8), trials=8, **BUDGET)
    assert found.reached == pytest.approx(0.8, rel=1e-3)
    assert (found.profile.reached, found.profile.reached_for) == (found.reached, None)
    assert found.best.keeps_floor
    assert found.attempts[-1].error == pytest.approx(0, abs=0.01)


def test_where_nothing_keeps_the_floor_the_fastest_is_the_best() -> None:
    problem = ctr_problem(8, (60, 3), floor=80_000)
    machines = Machines(with_profile(problem, slower(slower(problem.profile, "v100", 3.5), "cpu", 3.5)), reach=0.3)
    found = measure(problem, machines, trials=5, **BUDGET)
    assert not any(attempt.keeps_floor for attempt in found.attempts)
    assert found.best.throughput == max(attempt.throughput for attempt in found.attempts)


def test_the_same_seed_tries_the_same_plans(problem: Problem, slow_gpus: tuple[Machines, Measurement]) -> None:
    machines = Machines(slow_gpus[0].truth)
    measure(problem, machines, trials=8, seed=0, **BUDGET)
    assert [p.stages for p in machines.plans] == [p.stages for p in slow_gpus[0].plans]


class Failing(Machines):
    """Machines that fail in one trial, counted from 1."""

    def __init__(self, truth: Problem, number: int, error: BaseException) -> None:
        super().__init__(truth)
        self.number, self.error = number, error

    def __call__(self, plan: Plan) -> Trial:
        trial = super().__call__(plan)
        if len(self.plans) == self.number:
            raise self.error
        return trial


@pytest.mark.parametrize(("error", "name"), [(KeyboardInterrupt(), "SIGINT"), (TrialStopped("SIGTERM"), "SIGTERM")])
def test_who_interrupts_gets_what_was_measured_until_then(problem: Problem, error: BaseException, name: str) -> None:
    found = measure(problem, Failing(problem, 3, error), trials=8, **BUDGET)
    assert found.stopped_by == name
    assert len(found.attempts) == 2
    assert found.best in found.attempts


def test_an_interrupt_before_the_first_trial_is_over_is_one(problem: Problem) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(problem, Failing(problem, 1, KeyboardInterrupt()), trials=8, **BUDGET)


def test_a_failed_trial_is_told_and_the_others_go_on(problem: Problem) -> None:
    found = measure(problem, Failing(problem, 2, PeerLost("worker-1.0 died")), trials=4, **BUDGET)
    assert len(found.attempts) == 4
    assert found.attempts[1].reason == "worker-1.0 died"
    assert found.best.trial is not None


def test_an_error_of_the_first_trial_is_the_users(problem: Problem) -> None:
    with pytest.raises(PeerLost, match="no such data"):
        measure(problem, Failing(problem, 1, PeerLost("no such data")), trials=8, **BUDGET)


def test_other_methods_and_impossible_floors_are_refused_before_any_trial(problem: Problem) -> None:
    machines = Machines(problem)
    with pytest.raises(ConfigError, match="rl, rl-scratch, rl-rnn and changes"):
        measure(problem, machines, method="greedy", **BUDGET)
    with pytest.raises(PlanInfeasible):
        measure(ctr_problem(8, (400, 32), floor=1e12), machines, **BUDGET)
    assert not machines.plans
