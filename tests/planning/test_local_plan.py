"""The plan of a job without one, on workers."""

import pytest

from heterps.config import Cluster, Resource
from heterps.errors import ConfigError
from heterps.planning.local import (
    OF_JOB,
    ThisMachine,
    fit_overhead,
    local_plan,
    local_prediction,
    one_stage,
    two_stages,
)
from heterps.planning.plan import Stage
from heterps.profiling.profile import Cost, LayerProfile, Overhead, Profile

LAYERS = ["first", "second"]
CLUSTER = Cluster(
    resources={
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=8),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=2),
        "store": Resource(device="cpu", usd_per_hour=0.5, limit=0),
    },
    server_resource="store",
)


def profile(server_s=0.0, names=LAYERS, resource="cpu", estimated=False):
    cost = Cost(compute_s=0.5, sync_s=0.1, input_s=0.0, alpha=1.0, beta=1.0, estimated=estimated)
    layers = (LayerProfile(name=name, server_s=server_s, costs={resource: cost}) for name in names)
    return Profile(model="m", batch_size=100, layers=tuple(layers))


def plan(of, num_workers=2, batch_size=100, cluster=CLUSTER):
    return local_plan(LAYERS, cluster, of, num_workers=num_workers, batch_size=batch_size, samples=3600)


def test_it_is_one_stage_on_the_cheapest_cores_and_one_server():
    (stage,), servers = plan(None).stages, plan(None).servers
    assert (stage.first, stage.last, stage.resource, stage.count) == (0, 1, "cpu", 2)
    assert (servers.resource, servers.count) == ("store", 1)


@pytest.mark.parametrize(
    "of", [None, profile(resource="v100"), profile(names=["first", "other"]), profile(names=["first"])]
)
def test_without_costs_of_its_layers_on_its_resource_nothing_is_predicted(of):
    made = plan(of)
    assert not made.is_predicted
    assert (made.hours, made.usd, made.bottleneck) == (0.0, 0.0, "not predicted")


def test_it_is_billed_as_any_plan_its_server_included():
    made = plan(profile())
    assert made.throughput == pytest.approx(200.0)  # two layers of 0.5 s for 100 samples, on two cores
    assert made.hours == pytest.approx(3600 / 200 / 3600)
    assert made.usd == pytest.approx(made.hours * (2 * 0.04 + 0.5))
    assert made.bottleneck == "first..second on cpu (compute)"
    assert made.estimated == ()


def test_the_server_may_be_the_bottleneck():
    made = plan(profile(server_s=2.0))
    assert made.throughput == pytest.approx(25.0)
    assert made.bottleneck == "servers on store"


def test_the_profile_is_taken_to_the_batch_size_of_the_job():
    assert plan(profile(), batch_size=10).throughput == pytest.approx(200.0)
    assert plan(profile(), batch_size=10).batch_size == 10


def test_estimates_are_called_so():
    assert plan(profile(estimated=True)).estimated == ("cpu",)


# --- processes of this machine ---------------------------------------------------------------------------------------

ROUNDS, FREE = ThisMachine(16, in_rounds=True), ThisMachine(16, in_rounds=False)


LOCAL = Overhead(batch_s=0.05, worker_s=0.01, free_fixed_s=0.02, free_divided_s=0.04)
STEP_S = 1.5 * (1.0 + 0.4 + 0.3)  # layers, servers and reading, times what real steps take of that


def of_machine(overhead=LOCAL, alpha=1.0):
    cost = Cost(compute_s=0.5, sync_s=0.1, input_s=0.0, alpha=alpha, beta=1.0)
    first = LayerProfile(name="first", server_s=0.2, costs={"cpu": cost.model_copy(update={"input_s": 0.3})})
    layers = (first, LayerProfile(name="second", server_s=0.2, costs={"cpu": cost}))
    known = {"inline": Overhead(batch_s=0.03), "local": overhead} if overhead else None
    return Profile(model="m", batch_size=100, layers=layers, overheads=known, whole_steps={1: 1.5})


def predict(of, num_workers, here):
    return local_prediction(of, CLUSTER, [one_stage(2, CLUSTER, num_workers)], num_workers, here)


def test_in_rounds_workers_divide_the_layers_and_wait_for_all_else():
    one, two = (predict(of_machine(), k, ROUNDS) for k in (1, 2))
    assert one.seconds == pytest.approx(STEP_S - 0.03 + 0.05)
    assert two.seconds == pytest.approx(STEP_S - 0.03 - 0.5 + 0.06)
    assert (two.compute_s, two.servers_s, two.network_s) == pytest.approx((0.5, 0.4, 0.2))
    undivided = predict(of_machine(alpha=0.0), 2, ROUNDS)
    assert undivided.seconds == pytest.approx(STEP_S - 0.03 + 0.06)


def test_without_rounds_workers_take_whole_batches_and_divide_all_but_what_is_fixed():
    one, two = (predict(of_machine(), k, FREE) for k in (1, 2))
    assert one.seconds == pytest.approx(STEP_S - 0.03 + 0.06)
    assert two.seconds == pytest.approx((STEP_S - 0.03 + 0.04) / 2 + 0.02)


def test_the_start_of_a_run_counts_once_however_long_it_is():
    started = predict(of_machine(LOCAL.model_copy(update={"start_s": 3.0})), 1, ROUNDS)
    steady = predict(of_machine(), 1, ROUNDS)
    assert started.seconds == steady.seconds
    assert started.over(10).seconds == pytest.approx(steady.seconds + 0.3)
    assert started.over(10).over(10) == started.over(10), "it is not counted twice"
    assert (started.over(0), steady.over(10)) == (started, steady)


def test_more_workers_than_cores_divide_no_more():
    two_cores = ThisMachine(2, in_rounds=False)
    two, eight = (predict(of_machine(), k, two_cores).seconds for k in (2, 8))
    assert eight == pytest.approx(two)
    rounds = predict(of_machine(alpha=1.0), 8, ThisMachine(2, in_rounds=True))
    assert rounds.compute_s == pytest.approx(8 * (1.0 / 8) / 2)


@pytest.mark.parametrize(("in_rounds", "free"), [((2.9, 2.6), (3.1, 1.9)), ((1.2, 3.4), (3.1, 3.0))])
def test_an_overhead_fitted_to_trials_predicts_them_again(in_rounds, free):
    fitted = fit_overhead(of_machine(), CLUSTER, in_rounds, free, error=0.03)
    profile = of_machine().model_copy(update={"overheads": {OF_JOB: fitted}})
    for k in (1, 2):
        assert predict(profile, k, ROUNDS).seconds == pytest.approx(in_rounds[k - 1])
    found = [predict(profile, k, FREE).seconds for k in (1, 2)]
    assert sum(found) == pytest.approx(sum(free)), "also where two workers gain less than their layers would"
    assert predict(profile, 1, ROUNDS).basis == "short trials of this job"


@pytest.mark.parametrize(
    ("in_rounds", "free"), [((2.9, 2.6, 3.3), (3.1, 1.9, 2.5)), ((1.2, 3.4, 1.9), (3.1, 3.0, 1.0))]
)
def test_trials_of_two_stages_tell_what_a_message_costs(in_rounds, free):
    fitted = fit_overhead(of_machine(), CLUSTER, in_rounds, free, error=0.03, lanes=8)
    profile = of_machine().model_copy(update={"overheads": {OF_JOB: fitted}})
    two = [local_prediction(profile, CLUSTER, two_stages(2, CLUSTER), 8, ThisMachine(2, one)).seconds for one in (1, 0)]
    assert fitted.message_s >= 0 <= fitted.free_message_s
    expected = [in_rounds[2] if fitted.message_s else two[0], free[2] if fitted.free_message_s else two[1]]
    assert two == pytest.approx(expected)
    assert (fitted.message_s > 0) == (in_rounds[2] == 3.3), "never less than nothing"


TWO_STAGES = [Stage(first=n, last=n, resource="cpu", count=1) for n in (0, 1)]
WITH_MESSAGES = LOCAL.model_copy(update={"message_s": 0.002, "free_message_s": 0.003})


def test_stages_in_rounds_overlap_but_for_a_micro_batch_and_pay_for_each_that_crosses_their_border():
    one = predict(of_machine(WITH_MESSAGES), 1, ROUNDS)
    two = local_prediction(of_machine(WITH_MESSAGES), CLUSTER, TWO_STAGES, 4, ROUNDS)
    assert two.compute_s == pytest.approx(5 * 0.125), "four micro-batches of 1/8 s, and one more to fill the pipeline"
    assert two.seconds - two.compute_s == pytest.approx(one.seconds - one.compute_s + 0.01 + 8 * 0.002), (
        "worker, messages"
    )
    alone = local_prediction(of_machine(WITH_MESSAGES), CLUSTER, TWO_STAGES, 4, ThisMachine(1, in_rounds=True))
    assert alone.compute_s == pytest.approx(1.0), "one core does all of it"


def test_stages_without_rounds_are_as_fast_as_the_slowest_and_no_faster_than_all_cores():
    uneven = [TWO_STAGES[0], TWO_STAGES[1].model_copy(update={"count": 2})]
    free = [local_prediction(of_machine(WITH_MESSAGES), CLUSTER, uneven, 6, ThisMachine(k, False)) for k in (1, 16)]
    assert [one.compute_s for one in free] == pytest.approx([1.0, 0.5])
    rest_s = free[1].seconds - free[1].compute_s
    assert rest_s == pytest.approx((STEP_S - 1.0 - 0.03 + 0.04) / 3 + 0.02 + 2 * 0.003 * 2 / 3)


def test_a_stage_on_another_device_takes_no_core():
    cost = of_machine().layers[0].costs["cpu"]
    layers = tuple(layer.model_copy(update={"costs": layer.costs | {"v100": cost}}) for layer in of_machine().layers)
    both = of_machine().model_copy(update={"layers": layers})
    stages = [TWO_STAGES[0], TWO_STAGES[1].model_copy(update={"resource": "v100"})]
    found = local_prediction(both, CLUSTER, stages, 2, ThisMachine(1, in_rounds=False))
    assert found.compute_s == pytest.approx(0.5)


def behind_ports(rate_gbps, num_workers, here):
    resources = {
        name: resource.model_copy(update={"port_gbps": rate_gbps}) for name, resource in CLUSTER.resources.items()
    }
    moved = {"first": {"row_bytes": 1_000_000}, "second": {"dense_bytes": 250_000}}
    layers = tuple(layer.model_copy(update=moved[layer.name]) for layer in of_machine().layers)
    stages, ported = [one_stage(2, CLUSTER, num_workers)], CLUSTER.model_copy(update={"resources": resources})
    return local_prediction(of_machine().model_copy(update={"layers": layers}), ported, stages, num_workers, here)


def test_hosts_in_rounds_wait_for_the_port_of_the_server_which_one_of_them_does_not_need():
    here = ThisMachine(16, in_rounds=True, has_ports=True, num_beside=1)
    alone, three = (behind_ports(0.008, k, here) for k in (1, 3))  # 1 MB/s
    assert alone.network_s == 0, "its server is on the same host"
    assert three.network_s == pytest.approx(2 * (1 / 3 + 0.5)), "two others: a third of the rows, all weights twice"
    assert three.seconds == pytest.approx(predict(of_machine(), 3, ROUNDS).seconds + three.network_s)
    apart = behind_ports(0.008, 3, ThisMachine(16, in_rounds=True, has_ports=True))
    assert apart.network_s == pytest.approx(3 * (1 / 3 + 0.5))


def test_hosts_that_share_few_cores_compute_while_others_wait_for_their_ports():
    here = ThisMachine(1, in_rounds=True, has_ports=True, num_beside=1)
    fast, slow = (behind_ports(rate, 3, here) for rate in (8.0, 0.008))
    assert fast.seconds == pytest.approx(predict(of_machine(), 3, ThisMachine(1, in_rounds=True)).seconds)
    added_s = slow.seconds - fast.seconds
    assert 0 < added_s < slow.network_s
    free = ThisMachine(16, in_rounds=False, has_ports=True)
    assert behind_ports(0.0008, 3, free).seconds == pytest.approx(15.0), "each batch has 1.5 MB, at 0.1 MB/s"


def test_a_plan_of_this_machine_has_the_terms_of_its_prediction_and_an_interval():
    known, unknown = (
        local_plan(LAYERS, CLUSTER, of_machine(overhead), num_workers=1, batch_size=100, samples=3600, here=ROUNDS)
        for overhead in (LOCAL, None)
    )
    assert known.throughput == pytest.approx(100 / (STEP_S + 0.02))
    assert known.bottleneck == "this machine"
    assert known.hours == pytest.approx((STEP_S + 0.02) / 100)
    assert known.prediction is not None
    assert unknown.prediction is not None
    assert unknown.prediction.error > 2 * known.prediction.error, "nobody has measured the launcher"


def test_a_cluster_without_cores_is_refused():
    cluster = Cluster(resources={"v100": Resource(device="cuda", usd_per_hour=2.42, limit=2)}, server_resource="v100")
    with pytest.raises(ConfigError, match="no resource with device: cpu"):
        plan(None, cluster=cluster)
