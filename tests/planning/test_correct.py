from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from heterps.config import Cluster, Resource
from heterps.planning.correct import correct
from heterps.planning.cost import Problem, Terms, bill, stage_terms
from heterps.planning.plan import Plan, Servers, Stage
from heterps.planning.trial import StageSeconds, Trial
from heterps.profiling.profile import Cost, LayerProfile, Profile

CLUSTER = Cluster(
    resources={
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=64),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=64),
    },
    server_resource="cpu",
)
COUNTS = (1, 2, 4, 8)


def make_profile(costs: Sequence[dict[str, Cost]]) -> Profile:
    layers = [LayerProfile(name=f"l{i}", costs=of_layer) for i, of_layer in enumerate(costs)]
    return Profile(model="m", batch_size=64, layers=tuple(layers))


def make_plan(*stages: tuple[int, int, str, int]) -> Plan:
    made = [Stage(first=f, last=last, resource=r, count=k) for f, last, r, k in stages]
    servers = Servers(resource="cpu", count=0)
    return Plan(method="rl", stages=tuple(made), servers=servers, throughput=0, hours=0, usd=0, bottleneck="")


def terms_of(profile: Profile, stage: Stage) -> Terms:
    problem = Problem(profile, CLUSTER, throughput=1, samples=1)
    return stage_terms(problem, stage.first, stage.last, problem.resources.index(stage.resource))


def try_out(truth: Profile, plan: Plan, *, is_emulated: bool = False) -> Trial:
    """What a trial measures where the cost model with `truth` is right: communication shows where it is longer."""
    stages = []
    for stage in plan.stages:
        terms = terms_of(truth, stage)
        compute_s, busy_s = terms.compute_s(stage.count), terms.busy_s(stage.count)
        stages.append(StageSeconds(busy_s, 0.0) if is_emulated else StageSeconds(compute_s, busy_s - compute_s))
    throughput = bill(Problem(truth, CLUSTER, throughput=1, samples=1), plan.stages, 0).throughput
    return Trial(plan, throughput, tuple(stages), num_batches=8, seconds=1.0, is_emulated=is_emulated)


seconds = st.floats(0.001, 0.1)
shares = st.floats(0.75, 1.0)
factors = st.floats(0.7, 1.4)  # with the worst shares still within BOUND


@st.composite
def costs(draw: st.DrawFn) -> Cost:
    return Cost(
        compute_s=draw(seconds), sync_s=draw(seconds), input_s=draw(seconds), alpha=draw(shares), beta=draw(shares)
    )


@st.composite
def profiles(draw: st.DrawFn, num_layers: int) -> Profile:
    return make_profile([{"cpu": draw(costs()), "v100": draw(costs())} for _ in range(num_layers)])


@st.composite
def plans(draw: st.DrawFn, num_layers: int) -> Plan:
    borders = sorted(draw(st.sets(st.integers(1, num_layers - 1), max_size=2)))
    firsts, lasts = [0, *borders], [*(b - 1 for b in borders), num_layers - 1]
    name, other = draw(st.permutations(["cpu", "v100"]))
    counts = [draw(st.sampled_from(COUNTS)) for _ in firsts]
    stages = [
        (f, last, (name, other)[i % 2], k) for i, (f, last, k) in enumerate(zip(firsts, lasts, counts, strict=True))
    ]
    return make_plan(*stages)


def busy(profile: Profile, plan: Plan) -> list[float]:
    return [terms_of(profile, stage).busy_s(stage.count) for stage in plan.stages]


errors = st.tuples(factors, factors, factors)


def changed(cost: Cost, compute: float, sync: float, input: float) -> Cost:
    update = {"compute_s": cost.compute_s * compute, "sync_s": cost.sync_s * sync, "input_s": cost.input_s * input}
    return cost.model_copy(update=update)


def check_visited(truth: Profile, wrong: Profile, tried: list[Plan]) -> None:
    corrected = correct(wrong, CLUSTER, [try_out(truth, plan) for plan in tried])
    for plan in tried:
        assert busy(corrected, plan) == pytest.approx(busy(truth, plan), rel=0.02)
    assert Profile.model_validate(corrected.model_dump()) == corrected  # nothing negative, no share above 1


@settings(max_examples=100, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_wrong_seconds_of_what_trials_visited_come_within_two_percent(data: st.DataObject) -> None:
    truth = data.draw(profiles(4))
    wrong = make_profile(
        [{name: changed(cost, *data.draw(errors)) for name, cost in layer.costs.items()} for layer in truth.layers]
    )
    check_visited(truth, wrong, data.draw(st.lists(plans(4), min_size=1, max_size=5)))


@settings(max_examples=100, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_wrong_shares_come_within_two_percent_where_stages_were_tried_at_several_counts(data: st.DataObject) -> None:
    truth = data.draw(profiles(4))
    wrong = make_profile(
        [
            {
                name: changed(cost, *data.draw(errors)).model_copy(
                    update={"alpha": data.draw(shares), "beta": data.draw(shares)}
                )
                for name, cost in layer.costs.items()
            }
            for layer in truth.layers
        ]
    )
    plan = data.draw(plans(4))
    counts = data.draw(st.sets(st.sampled_from(COUNTS), min_size=1))
    tried = [make_plan(*((s.first, s.last, s.resource, count) for s in plan.stages)) for count in counts]
    check_visited(truth, wrong, tried)


@settings(max_examples=100, deadline=None, phases=[Phase.generate])
@given(st.data())
def test_right_predictions_stay_as_they_are(data: st.DataObject) -> None:
    truth = data.draw(profiles(4))
    is_emulated = data.draw(st.booleans())
    tried = data.draw(st.lists(plans(4), min_size=1, max_size=5))
    corrected = correct(truth, CLUSTER, [try_out(truth, plan, is_emulated=is_emulated) for plan in tried])
    for before, after in zip(truth.layers, corrected.layers, strict=True):
        for name, cost in before.costs.items():
            fields = ("compute_s", "sync_s", "input_s", "alpha", "beta")
            assert [getattr(after.costs[name], f) for f in fields] == pytest.approx(
                [getattr(cost, f) for f in fields], rel=1e-3
            )
