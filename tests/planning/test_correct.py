from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heterps.config import Cluster, Resource
from heterps.planning.bill import bill
from heterps.planning.correct import BOUND, VISIBLE, _Observation, _observe, _parts, _Side, _StageTrial, correct
from heterps.planning.cost import Problem, Terms, stage_terms
from heterps.planning.plan import Plan, PlannedServers, Stage
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
    servers = PlannedServers(resource="cpu", count=0)
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
        stages.append(StageSeconds(compute_s, busy_s - compute_s))
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
    """What shows a little is taken for compute, so that sums of such stages need not agree: trials have none of it."""
    trials = [try_out(truth, plan) for plan in tried]
    assume(not any(0 < s.communicate_s <= VISIBLE * s.busy_s for trial in trials for s in trial.stages))
    corrected = correct(wrong, CLUSTER, trials)
    for plan in tried:
        assert busy(corrected, plan) == pytest.approx(busy(truth, plan), rel=0.02)
    assert Profile.model_validate(corrected.model_dump()) == corrected  # nothing negative, no share above 1


@settings(max_examples=60)
@given(st.data())
def test_wrong_seconds_of_overlapping_stages_come_within_two_percent_at_one_count(data: st.DataObject) -> None:
    truth = data.draw(profiles(4))
    wrong = make_profile(
        [{name: changed(cost, *data.draw(errors)) for name, cost in layer.costs.items()} for layer in truth.layers]
    )
    count = data.draw(st.sampled_from(COUNTS))
    tried = data.draw(st.lists(plans(4), min_size=1, max_size=5))
    check_visited(truth, wrong, [make_plan(*((s.first, s.last, s.resource, count) for s in p.stages)) for p in tried])


@settings(max_examples=60)
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


@settings(max_examples=60)
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


def one_layer(**costs: Cost) -> Profile:
    return make_profile([costs])


COST = Cost(compute_s=1.0, sync_s=0.25, input_s=0.25, alpha=0.9, beta=0.8, compute_fixed_s=0.1, estimated=True)


def trial_of(stage: tuple[int, int, str, int], measured: StageSeconds, *, is_emulated: bool = False) -> Trial:
    return Trial(make_plan(stage), 1.0, (measured,), num_batches=8, seconds=1.0, is_emulated=is_emulated)


def test_one_trial_at_one_count_scales_seconds_and_leaves_the_shares() -> None:
    tried = trial_of((0, 0, "cpu", 2), StageSeconds(2 * (0.1 + 0.9 / 2), 0.0))
    cost = correct(one_layer(cpu=COST), CLUSTER, [tried]).layers[0].costs["cpu"]
    assert (cost.compute_s, cost.alpha, cost.compute_fixed_s) == pytest.approx((2.0, 0.9, 0.2))
    assert (cost.sync_s, cost.input_s, cost.beta) == pytest.approx(
        (0.25, 0.25, 0.8)
    )  # hidden: nothing speaks against it


def test_two_counts_tell_the_share_that_units_divide() -> None:
    tried = [trial_of((0, 0, "cpu", count), StageSeconds(1.0 + 1.0 / count, 0.0)) for count in (1, 4)]
    cost = correct(one_layer(cpu=COST), CLUSTER, tried).layers[0].costs["cpu"]
    assert (cost.compute_s, cost.alpha) == pytest.approx((2.0, 0.5))


def test_communication_that_shows_corrects_sync_and_input_alike() -> None:
    tried = trial_of((0, 0, "cpu", 1), StageSeconds(1.0, 0.5))
    cost = correct(one_layer(cpu=COST), CLUSTER, [tried]).layers[0].costs["cpu"]
    assert cost.compute_s == pytest.approx(1.0)
    assert (cost.sync_s, cost.input_s) == pytest.approx((0.75, 0.75))


@pytest.mark.parametrize(("measured_s", "factor"), [(100.0, BOUND), (0.001, 1 / BOUND)])
@pytest.mark.parametrize("num_trials", [1, 2])
def test_a_trial_changes_a_stage_by_a_bounded_factor(measured_s: float, factor: float, num_trials: int) -> None:
    tried = [trial_of((0, 0, "cpu", 1), StageSeconds(measured_s, 0.0))] * num_trials
    corrected = correct(one_layer(cpu=COST), CLUSTER, tried).layers[0].costs["cpu"].compute_s
    assert min(factor**num_trials, 1) <= corrected <= max(factor**num_trials, 1)
    assert corrected != pytest.approx(1.0)


def test_what_real_units_measured_is_no_estimate_and_what_was_emulated_stays_one() -> None:
    profile = make_profile([{"cpu": COST, "v100": COST}, {"cpu": COST, "v100": COST}])
    measured = StageSeconds(1.0, 0.0)
    real = correct(profile, CLUSTER, [trial_of((0, 0, "cpu", 1), measured)])
    assert [(layer.costs["cpu"].estimated, layer.costs["cpu"].corrected) for layer in real.layers] == [
        (False, True),
        (True, False),
    ]
    assert all(layer.costs["v100"] == COST for layer in real.layers)
    emulated = correct(profile, CLUSTER, [trial_of((0, 0, "cpu", 1), measured, is_emulated=True)])
    assert (emulated.layers[0].costs["cpu"].estimated, emulated.layers[0].costs["cpu"].corrected) == (True, True)


def test_a_profile_that_nothing_corrected_is_written_as_before() -> None:
    assert "corrected" not in one_layer(cpu=COST).model_dump_json()
    tried = trial_of((0, 0, "cpu", 1), StageSeconds(1.0, 0.0))
    assert '"corrected":true' in correct(one_layer(cpu=COST), CLUSTER, [tried]).model_dump_json()


def test_a_stage_that_was_predicted_to_take_no_time_gets_what_was_measured() -> None:
    free = COST.model_copy(update={"compute_s": 0.0, "compute_fixed_s": 0.0, "sync_s": 0.0, "input_s": 0.0})
    profile = make_profile([{"cpu": free}, {"cpu": free}, {"cpu": COST}])
    corrected = correct(profile, CLUSTER, [trial_of((0, 1, "cpu", 2), StageSeconds(0.5, 0.0))])
    assert [layer.costs["cpu"].compute_s for layer in corrected.layers] == pytest.approx([0.5, 0.5, 1.0])


def test_trials_of_a_spot_unit_correct_the_costs_of_its_device() -> None:
    spot = Cluster.model_validate(
        {"resources": {"cpu": {"limit": 4}, "v100-spot": {"limit": 4}}, "server_resource": "cpu"}
    )
    tried = trial_of((0, 0, "v100-spot", 1), StageSeconds(2.0, 0.0))
    corrected = correct(one_layer(cpu=COST, v100=COST), spot, [tried])
    assert list(corrected.layers[0].costs) == ["cpu", "v100"]
    assert corrected.layers[0].costs["v100"].compute_s == pytest.approx(2.0)
    assert corrected.on(spot).layers[0].costs["v100-spot"].compute_s == pytest.approx(2.0)


def test_without_trials_nothing_changes() -> None:
    assert correct(one_layer(cpu=COST), CLUSTER, []) == one_layer(cpu=COST)


@pytest.mark.parametrize(("counts", "tells"), [((2, 3), True), ((3, 2), True), ((4, 5), False), ((3, 3), False)])
def test_two_counts_tell_what_more_units_divide_only_where_they_are_well_apart(
    counts: tuple[int, int], tells: bool
) -> None:
    parts = _parts([_Observation(count, 1.0 + 6.0 / count) for count in counts])
    assert parts == (pytest.approx((1.0, 6.0)) if tells else None)


@pytest.mark.parametrize(("communicate_s", "shows"), [(0.01, False), (0.05, False), (0.06, True)])
def test_communication_shows_only_from_its_share_of_the_busy_time_on(communicate_s: float, shows: bool) -> None:
    """The profile says that computing hides it; a little is noise, and only bounds it."""
    compute, comm = _Side(np.zeros(1), np.ones(1)), _Side(np.zeros(2), np.array([0.5, 0.0]))
    measured = StageSeconds(1.0 - communicate_s, communicate_s)
    _observe(compute, comm, np.arange(1), [_StageTrial(1, measured, is_emulated=False)])
    assert compute.observed[0,][0] == _Observation(1, 1.0 - communicate_s if shows else 1.0)
    assert comm.observed[0, 1][0] == _Observation(1, 1.0, is_most=not shows)
