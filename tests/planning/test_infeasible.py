from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import assume, given, settings
from planning_oracle import Drawn, all_plans, make_problem, problems, split

from heterps import planning
from heterps.config import Cluster, Resource
from heterps.errors import ConfigError, PlanInfeasible
from heterps.planning import infeasible
from heterps.planning.chains import Undecided
from heterps.planning.cost import Problem
from heterps.planning.infeasible import LimitRaise, highest_throughput, joint_raise, single_raises, slowest_station
from heterps.planning.optimum import with_limits
from heterps.planning.real import Conditions
from heterps.planning.schedulers import METHODS
from heterps.profiling.profile import Cost, LayerProfile, Profile


def cost(compute_s: float, alpha: float = 1.0) -> Cost:
    return Cost(compute_s=compute_s, sync_s=0.0, input_s=0.0, alpha=alpha, beta=1.0)


def profile(server_s: float = 0.0) -> Profile:
    """Embedding on the cpu only, fc a tenth fixed on the v100 and hopeless on the cpu."""
    layers = (
        LayerProfile(name="embedding", server_s=server_s, costs={"cpu": cost(1.0)}),
        LayerProfile(name="fc", costs={"cpu": cost(100.0, 0.5), "v100": cost(1.0, 0.9)}),
    )
    return Profile(model="m", batch_size=100, layers=layers)


def cluster(cpus: int, v100s: int) -> Cluster:
    resources = {
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=cpus),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=v100s),
    }
    return Cluster(resources=resources, server_resource="cpu")


def reason(cpus: int, v100s: int, throughput: float, method: str = "exact", server_s: float = 0.0) -> str:
    with pytest.raises(PlanInfeasible) as error:
        planning.plan(profile(server_s), cluster(cpus, v100s), throughput=throughput, samples=1, method=method)
    return str(error.value)


def test_a_station_too_slow_with_any_number_of_units_is_named_with_its_best() -> None:
    text = reason(cpus=10, v100s=10, throughput=1001.0)  # fc keeps 0.1 s of 100 samples: below 1,000 samples/s
    assert "fc on v100 spends 0.1 s of compute on a batch of 100" in text
    assert "below 1,000 samples/s" in text
    assert "highest throughput within the limits is 526.3 samples/s (bottleneck: fc on v100 (compute))" in text
    assert text.endswith("ask for that or less; higher limits help to just below 1,000 samples/s.")


def test_the_limit_that_binds_is_named_with_what_it_must_rise_to() -> None:
    text = reason(cpus=10, v100s=2, throughput=500.0)  # fc in 0.2 s: 0.1 + 0.9/9
    assert "highest throughput within the limits is 181.8 samples/s" in text
    assert "raise the limit of v100 from 2 to 9." in text


def test_limits_that_must_rise_together_are_named_together() -> None:
    text = reason(cpus=2, v100s=2, throughput=500.0)  # embedding in 0.2 s: 5 cpus
    assert "raise these limits together: cpu from 2 to 5, v100 from 2 to 9." in text


def test_servers_count_against_the_limit_that_must_rise() -> None:
    assert "raise the limit of cpu from 5 to 10." in reason(cpus=5, v100s=9, throughput=500.0, server_s=1.0)


def test_servers_without_a_resource_to_rent_are_explained() -> None:
    both = {"cpu": cost(1.0), "v100": cost(1.0)}
    model = Profile(model="m", batch_size=100, layers=(LayerProfile(name="fc", server_s=1.0, costs=both),))
    with pytest.raises(
        PlanInfeasible, match=r"'cpu' has limit 0\. To reach 300 samples/s, raise the limit of cpu .* 3"
    ):
        planning.plan(model, cluster(0, 9), throughput=300, samples=1)


def test_the_raise_of_the_servers_covers_the_stages_that_need_it_too() -> None:
    both = {"cpu": cost(1.0), "v100": cost(1.0)}
    model = Profile(model="m", batch_size=100, layers=(LayerProfile(name="fc", server_s=1.0, costs=both),))
    with pytest.raises(PlanInfeasible, match=r"raise the limit of cpu from 0 to 6, or .*cpu from 0 to 3, v100 from 2"):
        planning.plan(model, cluster(0, 2).model_copy(update={"resources": cheap_v100()}), throughput=300, samples=1)


def cheap_v100() -> dict[str, Resource]:
    return {
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=0),
        "v100": Resource(device="cuda", usd_per_hour=0.01, limit=2),
    }


def test_a_resource_for_servers_alone_is_told_to_rise() -> None:
    model = Profile(
        model="m", batch_size=100, layers=(LayerProfile(name="fc", server_s=1.0, costs={"v100": cost(1.0)}),)
    )
    with pytest.raises(PlanInfeasible, match=r"raise the limit of cpu from 2 to 3\."):
        planning.plan(model, cluster(2, 9), throughput=300, samples=1)


def test_single_raises_are_told_cheapest_first_and_without_a_joint_one_that_rents_for_more() -> None:
    layers = tuple(LayerProfile(name=name, costs={"cpu": cost(1.0), "v100": cost(0.1)}) for name in "ab")
    rented = Cluster(
        resources={"cpu": Resource(usd_per_hour=1.0, limit=1), "v100": Resource(usd_per_hour=100.0, limit=1)},
        server_resource="cpu",
    )
    with pytest.raises(PlanInfeasible, match=r"the limit of cpu from 1 to 30, or of v100 from 1 to 3\.$"):
        planning.plan(Profile(model="m", batch_size=1, layers=layers), rented, throughput=15.0, samples=1)


@pytest.mark.parametrize(("dearer", "raised"), [("b", "a"), ("a", "b")])
def test_of_limits_raised_together_the_dearest_is_brought_down_first(dearer: str, raised: str) -> None:
    """One unit of c can spare the raise of a or that of b, but not both: it must spare the dearer of the two."""
    layers = (
        LayerProfile(name="x", costs={"a": cost(2.0), "c": cost(1.0)}),
        LayerProfile(name="y", costs={"b": cost(2.0), "c": cost(1.0)}),
    )
    prices = {"a": 1.0, "b": 1.0, "c": 100.0} | {dearer: 2.0}
    rented = Cluster(
        resources={name: Resource(usd_per_hour=usd, limit=1) for name, usd in prices.items()}, server_resource="c"
    )
    problem = Problem(Profile(model="m", batch_size=1, layers=layers), rented, 1.0, 1.0)
    assert not reaches(problem, rented)
    raises = joint_raise(problem)
    assert [(r.resource, r.limit, r.needed, r.is_least) for r in raises] == [(raised, 1, 2, True)]
    assert reaches(problem, with_limits(problem, {raised: 2}).cluster)


def test_a_floor_that_takes_units_without_end_is_told_apart_from_a_limit() -> None:
    text = reason(cpus=10, v100s=10, throughput=999.9999999)
    assert "more than 10,000,000 units" in text


def test_limits_too_low_for_any_plan_are_told_apart_from_slow_ones() -> None:
    assert "too low for any plan, however slow" in reason(cpus=1, v100s=2, throughput=1.0, server_s=1.0)


def test_a_method_that_fails_where_another_does_not_points_to_it() -> None:
    assert "method cpu finds no plan" in (text := reason(cpus=10, v100s=10, throughput=200.0, method="cpu"))
    assert "method exact with provisioner exact, the defaults, plan it for" in text


def test_a_provisioner_that_fails_where_the_exact_one_does_not_is_named() -> None:
    with pytest.raises(PlanInfeasible, match=r"method exact with provisioner sta-ratio finds no plan.*there is one"):
        planning.plan(profile(), cluster(3, 3), throughput=220, samples=1e9, provisioner="sta-ratio")


def test_a_resource_with_limit_0_may_be_what_must_rise() -> None:
    both = {"cpu": cost(1.0, 0.5), "v100": cost(0.1)}
    model = Profile(model="m", batch_size=100, layers=(LayerProfile(name="fc", costs=both),))
    with pytest.raises(PlanInfeasible, match=r"To reach 1,000 samples/s, raise the limit of v100 from 0 to 1"):
        planning.plan(model, cluster(9, 0), throughput=1000, samples=1)


def test_what_was_asked_is_told_as_it_was_asked() -> None:
    assert "reaches 526.4 samples/s" in reason(cpus=10, v100s=10, throughput=526.4)
    assert "reaches 208,936.97 samples/s" in reason(cpus=10**6, v100s=10, throughput=208_936.97).replace(
        "can reach", "reaches"
    )


@pytest.mark.parametrize(
    ("method", "remedy"), [("exact", "give it more."), ("rl", "give it more, or use method exact.")]
)
def test_a_method_cut_short_is_told_apart_from_one_that_has_no_plan(method: str, remedy: str) -> None:
    with pytest.raises(PlanInfeasible, match=rf"found no plan for 200 samples/s in the seconds.*{re.escape(remedy)}$"):
        planning.plan(profile(), cluster(10, 10), throughput=200.0, samples=1e9, seconds=0, method=method)


def test_a_method_whose_kind_of_resource_is_missing_says_so() -> None:
    only_cpu = Profile(model="m", batch_size=1, layers=(LayerProfile(name="fc", costs={"cpu": cost(1.0)}),))
    rented = Cluster(resources={"cpu": Resource(usd_per_hour=1.0, limit=1)}, server_resource="cpu")
    with pytest.raises(PlanInfeasible, match=r"method gpu needs a resource whose device is not cpu.*cpu \(cpu\)"):
        planning.plan(only_cpu, rented, throughput=1, samples=1, method="gpu")


def test_an_unknown_method_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=rf"no method 'exat'.*Methods: {', '.join(METHODS)}"):
        planning.plan(profile(), cluster(10, 10), throughput=1, samples=1, method="exat")


def test_a_single_plan_is_the_fastest_also_where_its_seconds_are_rounded_up() -> None:
    alone = Cost(compute_s=0.0, sync_s=2.0, input_s=3.0, alpha=0.0, beta=0.7305698143365519)
    model = Profile(model="m", batch_size=1, layers=(LayerProfile(name="fc", costs={"cpu": alone}),))
    rented = Cluster(resources={"cpu": Resource(usd_per_hour=1.0, limit=1)}, server_resource="cpu")
    fastest, _ = highest_throughput(Problem(model, rented, 2.0, 1.0))
    assert fastest is not None
    assert fastest.throughput == pytest.approx(0.2)


@settings(max_examples=60)
@given(problems(max_layers=3, max_resources=2, max_limit=3))
def test_the_highest_throughput_is_that_of_the_fastest_of_all_plans(drawn: Drawn) -> None:
    problem = make_problem(drawn)
    fastest, sure = highest_throughput(problem)
    assert sure
    best = max((reached for reached, _ in all_plans(problem.profile, problem.cluster, 1)), default=None)
    assert (fastest is None) == (best is None)
    if fastest is not None:
        assert fastest.throughput == pytest.approx(best, rel=2e-6)


@settings(max_examples=60)
@given(problems(max_layers=3, max_resources=2, max_limit=2))
def test_a_limit_raised_as_told_is_enough_and_one_less_is_not(drawn: Drawn) -> None:
    problem = make_problem(drawn)
    assume(not reaches(problem, problem.cluster))
    for least in single_raises(problem):
        check_least(problem, [least])


@settings(max_examples=60)
@given(problems(max_layers=3, max_resources=3, max_limit=2))
def test_limits_raised_together_as_told_are_enough_and_one_less_of_any_is_not(drawn: Drawn) -> None:
    problem = make_problem(drawn)
    assume(not reaches(problem, problem.cluster))
    check_least(problem, joint_raise(problem))


@settings(max_examples=60)
@given(problems(max_layers=2, max_resources=2, max_limit=2))
def test_raises_are_the_least_where_the_servers_have_no_resource_to_rent(drawn: Drawn) -> None:
    drawn_profile, rented, floor = drawn
    layers = [
        layer.model_copy(update={"costs": layer.costs | {"spare": next(iter(layer.costs.values()))}})
        for layer in drawn_profile.layers
    ]
    layers[0] = layers[0].model_copy(update={"server_s": layers[0].server_s or 0.25})  # so that servers are needed
    spare = rented.model_copy(update={"resources": rented.resources | {"spare": next(iter(rented.resources.values()))}})
    shut = with_limit(spare, rented.server_resource, 0)
    problem = make_problem((drawn_profile.model_copy(update={"layers": tuple(layers)}), shut, floor))
    assert problem.server_s > 0
    for least in single_raises(problem):
        check_least(problem, [least])
    check_least(problem, joint_raise(problem))


def check_least(problem: Problem, raises: list[LimitRaise]) -> None:
    """The raises make a plan possible, and one unit less of any of them does not."""
    assume(all(r.needed <= 8 for r in raises))
    if not raises:
        return
    enough = {r.resource: r.needed for r in raises}
    assert reaches(problem, with_limits(problem, enough).cluster)
    for least in raises:
        assert least.is_least
        assert least.needed > least.limit == problem.cluster.resources[least.resource].limit
        rented = problem.cluster
        for name, limit in (enough | {least.resource: least.needed - 1}).items():
            rented = with_limit(rented, name, limit)
        assert not reaches(problem, rented)


def reaches(problem: Problem, rented: Cluster) -> bool:
    return any(reached >= problem.throughput * (1 - 1e-9) for reached, _ in all_plans(problem.profile, rented, 1))


def with_limit(rented: Cluster, name: str, limit: int) -> Cluster:
    changed = rented.resources[name].model_copy(update={"limit": limit})
    return rented.model_copy(update={"resources": rented.resources | {name: changed}})


@settings(max_examples=60)
@given(problems(max_layers=4, max_resources=3, max_limit=2))
def test_no_number_of_units_is_faster_than_the_slowest_station(drawn: Drawn) -> None:
    problem = make_problem(drawn)
    least = min(
        max(
            max(sum(c.compute_s * (1 - c.alpha) for c in costs), fixed + costs[0].input_s * (1 - costs[0].beta))
            for costs in stages
            for fixed in [sum(c.sync_s * (1 - c.beta) for c in costs)]
        )
        for schedule in itertools.product(problem.resources, repeat=problem.num_layers)
        if all(name in layer.costs for layer, name in zip(problem.profile.layers, schedule, strict=True))
        for stages in [
            [[layer.costs[name] for layer in problem.profile.layers[a : b + 1]] for a, b, name in split(schedule)]
        ]
    )
    assert slowest_station(problem).fixed_s == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize(
    ("value", "told"),
    [(181.89, "181.8"), (0.123499, "0.1234"), (9_999.99, "9,999"), (10_000.99, "10,000"), (526.4, "526.4")],
)
def test_a_number_is_told_as_no_more_than_it_is(value: float, told: str) -> None:
    assert infeasible._number(value) == told


@pytest.mark.parametrize(("usd_of_a", "is_told"), [(0.99, False), (1.0, False), (1.01, True)])
def test_limits_raised_together_are_told_only_where_they_rent_for_less_than_one_alone(
    usd_of_a: float, is_told: bool
) -> None:
    """Two more units of a, or one of b and one of c."""
    layers = (
        LayerProfile(name="x", costs={"a": cost(1.5), "b": cost(1.0)}),
        LayerProfile(name="y", costs={"a": cost(1.5), "c": cost(1.0)}),
    )
    rented = Cluster(
        resources={
            "a": Resource(usd_per_hour=usd_of_a, limit=1),
            "b": Resource(usd_per_hour=1.0, limit=0),
            "c": Resource(usd_per_hour=1.0, limit=0),
        },
        server_resource="a",
    )
    together = ", or raise these limits together: b from 0 to 1, c from 0 to 1"
    with pytest.raises(PlanInfeasible, match=rf"the limit of a from 1 to 3{together if is_told else ''}\.$"):
        planning.plan(Profile(model="m", batch_size=1, layers=layers), rented, throughput=1.0, samples=1)


@pytest.mark.parametrize(("num", "others"), [(3, "r2 from 1 to 2."), (4, "r2 from 1 to 2, or of 1 others.")])
def test_only_the_cheapest_raises_are_named_and_the_others_counted(num: int, others: str) -> None:
    names = [f"r{t}" for t in range(num)]
    layers = (LayerProfile(name="fc", costs=dict.fromkeys(names, cost(2.0))),)
    rented = Cluster(
        resources={name: Resource(usd_per_hour=1.0 + t, limit=1) for t, name in enumerate(names)}, server_resource="r0"
    )
    with pytest.raises(PlanInfeasible, match=rf"r0 from 1 to 2, or of r1 from 1 to 2, or of {re.escape(others)}$"):
        planning.plan(Profile(model="m", batch_size=1, layers=layers), rented, throughput=1.0, samples=1)


def test_raises_that_may_not_be_the_least_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def undecided(*_: object) -> None:
        raise Undecided(None, 0.0)

    monkeypatch.setattr(infeasible, "_least_raise", undecided)
    text = reason(cpus=2, v100s=2, throughput=500.0)
    assert "raise these limits together: cpu from 2 to 5, v100 from 2 to 9 (less may do)." in text


@pytest.mark.parametrize("undecided", [0, 1, 2])
def test_a_throughput_that_may_not_be_the_highest_is_told_as_such(
    undecided: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the questions on the way was not decided."""
    within, calls = infeasible._within_limits, []

    def doubtful(problem: Problem, tau: float) -> object:
        calls.append(tau)
        schedule, sure = within(problem, tau)
        return schedule, sure and len(calls) != undecided + 1

    monkeypatch.setattr(infeasible, "_within_limits", doubtful)
    _, sure = highest_throughput(Problem(profile(), cluster(10, 2), 500.0, 1.0))
    assert len(calls) > 3
    assert not sure
    calls.clear()
    assert "within the limits is at least 181.8 samples/s" in reason(cpus=10, v100s=2, throughput=500.0)


def test_numbers_in_messages_are_promises_rounded_down() -> None:
    text = reason(cpus=10, v100s=2, throughput=500.0)
    promised = re.search(r"within the limits is ([\d.]+)", text)
    assert promised
    planning.plan(profile(), cluster(10, 2), throughput=float(promised[1]), samples=1)


def test_a_longer_stage_that_sends_less_is_not_left_out_of_what_is_reachable() -> None:
    one = Cost(compute_s=0.001, sync_s=0.0, input_s=0.0, alpha=1.0, beta=0.0)
    able = {"first": ["cpu"], "second": ["cpu", "gpu"], "third": ["cpu", "gpu"], "last": ["gpu"]}
    sizes = (0, 10**8, 10**9, 10)  # to send the output of the second layer takes longest, of the third no time
    layers = tuple(
        LayerProfile(name=name, input_bytes=size, costs=dict.fromkeys(names, one))
        for (name, names), size in zip(able.items(), sizes, strict=True)
    )
    port = {"usd_per_hour": 1.0, "limit": 9, "port_gbps": 8.0}
    rented = Cluster(
        resources={"cpu": Resource(device="cpu", **port), "gpu": Resource(device="cuda", **port)}, server_resource="cpu"
    )
    problem = Problem(Profile(model="m", batch_size=100, layers=layers), rented, 1.0, 1e6, conditions=Conditions())
    fastest, _ = highest_throughput(problem)
    assert fastest is not None
    assert 100 / slowest_station(problem).fixed_s >= fastest.throughput
