"""Emulation, on fake clocks: units take the time that was measured of one, whatever sleeps and this machine do."""

from __future__ import annotations

import math
import threading

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from servers import make_roster, make_tables
from tiny import write_tiny

from heterps.config import Cluster, Data, Emulation, Job, Model, Resource, Schema
from heterps.errors import ConfigError
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.profiling.profile import Cost, LayerProfile, Profile
from heterps.ps.client.remote import RemoteClient
from heterps.ps.server.serve import serve
from heterps.ps.server.server import Server
from heterps.training.protocol import emulation, pacing
from heterps.training.protocol.emulated_units import (
    EmulatedServer,
    StagePace,
    link_bytes_per_s,
    memory_bytes,
    server_byte_s,
    stage_seconds,
    unit_port,
)
from heterps.training.protocol.emulation import choose_scale, lacks_devices, measure_batch_s, needed_scale
from heterps.training.protocol.layout import Layout, make_layout
from heterps.training.protocol.pacing import DilatedClock, NoPace, ServerPace, WorkerPace, make_pace
from heterps.training.protocol.predicted import round_seconds
from heterps.wire import MemoryNetwork

CLUSTER = Cluster(
    resources={
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=64),
        "gpu": Resource(device="cuda", usd_per_hour=2.0, limit=64),
    },
    server_resource="cpu",
)


class FakeTime:
    """A clock that moves only when somebody sleeps or works. Sleeps are too long by `oversleeps`, in turn, then not."""

    def __init__(self, oversleeps: tuple[float, ...] = ()) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        self._oversleeps = iter(oversleeps)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds + next(self._oversleeps, 0.0)

    def work(self, seconds: float) -> None:
        self.now += seconds


def make_plan(*stages: tuple[int, int, str, int], num_servers: int = 1) -> Plan:
    return Plan(
        method="given",
        stages=tuple(Stage(first=f, last=last, resource=name, count=count) for f, last, name, count in stages),
        servers=PlannedServers(resource="cpu", count=num_servers),
        throughput=1,
        hours=1,
        usd=1,
        bottleneck="",
    )


def layout_of(plan: Plan) -> Layout:
    return make_layout(plan, in_rounds=True, batch_size=100)


def cost(compute_s: float, sync_s: float = 0.0, alpha: float = 1.0, **more: float) -> Cost:
    return Cost(compute_s=compute_s, sync_s=sync_s, input_s=0.0, alpha=alpha, beta=1.0, **more)


def make_profile(*costs: dict[str, Cost], server_s: float = 0.0, batch_size: int = 100) -> Profile:
    layers = tuple(LayerProfile(name=f"layer{i}", server_s=server_s, costs=of) for i, of in enumerate(costs))
    return Profile(model="given", batch_size=batch_size, layers=layers)


# --- what the profile says -------------------------------------------------------------------------------------------


def test_a_unit_has_the_pace_that_was_measured_of_one_whatever_its_stage_has_beside_it() -> None:
    profile = make_profile({"cpu": cost(3.0, sync_s=9.0, alpha=0.1)}, {"cpu": cost(2.0, compute_fixed_s=1.0)})
    for count in (1, 3):
        (pace,) = stage_seconds(profile, CLUSTER, layout_of(make_plan((0, 1, "cpu", count))))
        assert (pace.forward_s, pace.backward_s) == pytest.approx((4.0 / 100 / 3, 4.0 / 100 * 2 / 3))
        assert pace.fixed_s == 1.0


def test_the_first_stage_reads_and_no_other_does() -> None:
    costs = {"cpu": cost(1.0).model_copy(update={"input_s": 0.5})}
    layout = layout_of(make_plan((0, 0, "cpu", 2), (1, 1, "cpu", 1)))
    first, second = stage_seconds(make_profile(costs, costs), CLUSTER, layout)
    assert (first.read_s, second.read_s) == (0.005, 0.0)
    time = FakeTime()
    pace = WorkerPace(first, 2.0, time.clock, time.sleep)
    for _ in range(3):
        pace.read(100, ahead=2)
    assert time.now == 1.0  # two of three seconds were read ahead
    time.work(10.0)
    pace.read(100, ahead=2)
    assert time.now == 11.0


def test_in_rounds_the_pipeline_fills_and_drains_and_servers_come_after_computing() -> None:
    profile = make_profile({"cpu": cost(6.0)}, {"cpu": cost(3.0)}, server_s=1.0)
    plan = make_plan((0, 0, "cpu", 2), (1, 1, "cpu", 1), num_servers=2)
    layout = make_layout(plan, in_rounds=True, batch_size=100, num_lanes=6)
    ends = 0.0  # two workers give two micro-batches every second, and the second stage takes half a second for each
    for lane in range(6):
        given = 6.0 / 6 * (lane // 2 + 1)
        ends = max(ends, given) + 3.0 / 6
    assert math.isclose(round_seconds(profile, CLUSTER, layout, 2, 100), ends + 2 * 1.0 / 2)
    (alone,) = [make_layout(make_plan((0, 1, "cpu", 1)), in_rounds=True, batch_size=100)]
    assert math.isclose(round_seconds(profile, CLUSTER, alone, 1, 100), 9.0 + 2.0), "no pipeline to fill"


def test_a_resource_of_another_name_has_the_costs_of_its_kind() -> None:
    """Exchanged names: the costs must be looked up once, not once more in what was found."""
    cluster = Cluster(
        resources={
            "v100": Resource(kind="t4", device="cuda", usd_per_hour=1, limit=1),
            "t4": Resource(kind="v100", device="cuda", usd_per_hour=1, limit=0),
        },
        server_resource="v100",
    )
    profile = make_profile({"v100": cost(1.0), "t4": cost(7.0)})
    (pace,) = stage_seconds(profile, cluster, layout_of(make_plan((0, 0, "v100", 1))))
    assert pace.sample_s == pytest.approx(0.07)


def test_a_missing_cost_is_named_with_the_command_that_makes_it() -> None:
    profile = make_profile({"cpu": cost(1.0), "gpu": cost(1.0)}, {"cpu": cost(1.0)})
    with pytest.raises(ConfigError, match=r"no cost for layer 'layer1' on 'gpu'.*`heterps profile JOB --out"):
        stage_seconds(profile, CLUSTER, layout_of(make_plan((0, 0, "cpu", 1), (1, 1, "gpu", 2))))


def test_resources_that_no_stage_uses_need_no_costs() -> None:
    layout = layout_of(make_plan((0, 0, "cpu", 1)))
    assert len(stage_seconds(make_profile({"cpu": cost(1.0)}), CLUSTER, layout)) == 1


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 1 layers and the stages have 2"):
        stage_seconds(make_profile({"cpu": cost(1.0)}), CLUSTER, layout_of(make_plan((0, 1, "cpu", 1))))


def test_a_pace_travels_in_a_message() -> None:
    pace = StagePace(0.25, 0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(pace), type=StagePace) == pace
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"forward_s": -1, "backward_s": 1}', type=StagePace)


def job_on(cluster: Cluster, **fields) -> Job:
    return Job.model_validate({"data": {"train": "x"}, "launcher": "local", "cluster": cluster, **fields})


def test_a_job_lacks_the_devices_that_are_not_here_unless_it_emulates_them(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert lacks_devices(job_on(CLUSTER), ["cpu", "gpu", "cpu", "gpu"]) == ["gpu"]
    assert lacks_devices(job_on(CLUSTER, emulation={}), ["cpu", "gpu"]) == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert lacks_devices(job_on(CLUSTER), ["cpu", "gpu"]) == []


@pytest.mark.parametrize("device", ["cuda:1", "xpu", "mps", "abacus"])
def test_every_device_is_asked_for_by_its_type_and_number(device: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 0)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 0)
    resources = {"one": Resource(device=device, usd_per_hour=1, limit=1)}
    assert lacks_devices(job_on(Cluster(resources=resources, server_resource="one")), ["one"]) == ["one"]


# --- keeping to it ---------------------------------------------------------------------------------------------------


def test_an_operation_is_over_when_the_emulated_time_is() -> None:
    time = FakeTime()
    pace = WorkerPace(StagePace(0.25, 0.5), 4.0, time.clock, time.sleep)
    ends = []
    for operation in (pace.forward, pace.backward, pace.fused):
        with operation(2):
            time.work(0.5)
        ends.append(time.now)
    assert ends == [2.0, 2.0 + 4.0, 2.0 + 4.0 + 6.0]
    assert time.sleeps == [1.5, 3.5, 5.5]
    assert pace.busy_s == 3.0
    assert pace.late_s == 0.0


@given(st.lists(st.floats(0, 0.9), min_size=1, max_size=30), st.lists(st.floats(0, 0.9), max_size=30))
def test_oversleeping_does_not_add_up_while_there_is_work(computes, oversleeps) -> None:
    time = FakeTime(tuple(oversleeps))
    pace = WorkerPace(StagePace(1.0, 0.0), 1.0, time.clock, time.sleep)
    for number, seconds in enumerate(computes, 1):
        with pace.forward(1):
            time.work(seconds)
        assert number - 1e-9 <= time.now <= number + 0.9 + 1e-9  # never early, and behind by one oversleep at most


def test_a_slow_moment_of_this_machine_is_caught_up_with_and_counted() -> None:
    time = FakeTime()
    pace = WorkerPace(StagePace(1.0, 0.0), 2.0, time.clock, time.sleep)
    with pace.forward(1):
        time.work(2.5)
    assert (time.now, pace.late_s) == (2.5, 0.5)
    with pace.forward(1):
        time.work(1.0)
    assert (time.now, pace.late_s) == (4.0, 0.5)


def test_a_machine_that_is_too_slow_does_not_hoard_time_to_catch_up_with() -> None:
    time = FakeTime()
    pace = WorkerPace(StagePace(1.0, 0.0), 1.0, time.clock, time.sleep)
    for _ in range(10):
        with pace.forward(1):
            time.work(3.0)
    assert (time.now, pace.late_s) == (30.0, 20.0)
    for _ in range(5):
        with pace.forward(1):
            pass
    assert time.now == 34.0  # one operation is caught up with, not twenty seconds


def test_oversleeping_by_many_short_operations_is_caught_up_with() -> None:
    time = FakeTime((0.05,))
    pace = WorkerPace(StagePace(0.001, 0.0), 1.0, time.clock, time.sleep)
    for _ in range(100):
        with pace.forward(1):
            pass
    assert time.now == pytest.approx(0.1)
    time.work(50.0)
    for _ in range(100):
        with pace.forward(1, ready_at=0.0):
            pass
    assert time.now == pytest.approx(50.1)  # a long pause is not: a tenth of a second at most


def test_work_that_was_there_before_the_unit_was_free_is_not_delayed_by_messages_in_between() -> None:
    time = FakeTime()
    pace = WorkerPace(StagePace(1.0, 0.0), 1.0, time.clock, time.sleep)
    for number in range(1, 4):
        with pace.forward(1, ready_at=0.0):
            time.work(0.25)
        assert time.now == number
        time.work(0.5)  # messages
    with pace.forward(1):
        pass
    assert time.now == 4.5  # nobody said when it came


def test_an_idle_unit_starts_when_work_comes() -> None:
    time = FakeTime()
    pace = WorkerPace(StagePace(1.0, 0.0), 1.0, time.clock, time.sleep)
    with pace.forward(1):
        pass
    time.work(10.0)
    with pace.forward(1, ready_at=10.5):
        time.work(0.25)
    assert time.now == 11.5
    assert pace.busy_s == 2.0


def test_an_error_does_not_wait() -> None:
    time = FakeTime()
    pace = WorkerPace(StagePace(1.0, 1.0), 1.0, time.clock, time.sleep)
    with pytest.raises(ZeroDivisionError), pace.fused(1):
        raise ZeroDivisionError
    assert time.sleeps == []


def test_a_worker_that_is_not_emulated_never_waits(monkeypatch) -> None:
    monkeypatch.setattr(pacing.time, "sleep", lambda _: pytest.fail("it slept"))
    pace = make_pace(None, 1.0)
    assert isinstance(pace, NoPace)
    for operation in (pace.forward, pace.backward, pace.fused):
        with operation(10**9), operation(1, ready_at=0.0):
            pass
    assert pace.busy_s == pace.late_s == 0.0
    assert isinstance(make_pace(StagePace(1.0, 1.0), 1.0), WorkerPace)


# --- machines and servers --------------------------------------------------------------------------------------------


def on_machines(**facts: object) -> Cluster:
    resources = {"cpu": {"usd_per_hour": 0.04, "limit": 64}, "gpu": {"device": "cuda", "usd_per_hour": 2, "limit": 64}}
    box = {"units": {"gpu": 4, "cpu": 8}, "usd_per_hour": 9, "limit": 4, "memory_gb": 16, "port_gbps": 8} | facts
    return Cluster.model_validate({"resources": resources, "server_resource": "cpu", "machines": {"box": box}})


def test_units_of_a_machine_share_its_port_and_others_have_their_own() -> None:
    profile = make_profile({"cpu": cost(1.0), "gpu": cost(1.0)})
    shared = on_machines()
    ports = [unit_port(profile, shared, "gpu", number) for number in (0, 3, 4)]
    assert ports == [("box-0", 1e9), ("box-0", 1e9), ("box-1", 1e9)]
    cpu = Resource(usd_per_hour=1, limit=9, port_gbps=16, memory_gb=2)
    own = Cluster(resources={"cpu": cpu}, server_resource="cpu")
    assert unit_port(profile, own, "cpu", 3) == ("cpu-3", 2e9)
    assert (memory_bytes(own, "cpu"), memory_bytes(shared, "gpu"), memory_bytes(CLUSTER, "cpu")) == (2e9, None, None)


def test_without_a_port_the_link_is_as_fast_as_the_profile_moved_bytes_over_it() -> None:
    costs = [{"cpu": cost(1.0, sync_s=seconds)} for seconds in (2.0, 1.0)]
    rows = LayerProfile(
        name="rows", kind="embedding", weight_bytes=10**9, output_bytes=3000, server_s=2.0, costs=costs[0]
    )
    layers = (rows, LayerProfile(name="dense", weight_bytes=1000, input_bytes=500, server_s=1.0, costs=costs[1]))
    profile = Profile(model="given", batch_size=100, layers=layers)
    moved = 2 * 3000 + 2 * 1000  # rows and weights, to the worker and their gradients back
    assert link_bytes_per_s(profile, "cpu") == (moved + 2 * 500) / 3.0
    assert server_byte_s(profile) == 3.0 / moved
    counted = layers[0].model_copy(update={"row_bytes": 4000, "dense_bytes": 10})
    assert server_byte_s(Profile(model="given", batch_size=100, layers=(counted,))) == 2.0 / 4020
    assert unit_port(make_profile({"cpu": cost(1.0)}), CLUSTER, "cpu", 0) is None


def test_a_server_is_busy_for_the_bytes_of_a_message_and_refuses_tables_beyond_its_memory() -> None:
    time = FakeTime()
    pace = ServerPace(EmulatedServer(0.25, 2.0, memory_bytes=1000.0), time.clock, time.sleep)
    for num_bytes in (2, 1, 9):
        began = time.now
        time.work(0.5)
        pace(num_bytes, began)
    assert (time.now, pace.late_s) == (6.0, 0.0)
    pace.check_memory("server-1", 1000)
    with pytest.raises(ConfigError, match=r"server-1 is out of memory: its tables take 1,001 bytes.* unit 1,000\."):
        pace.check_memory("server-1", 1001)


def test_a_server_is_paced_by_all_bytes_of_a_message_before_it_answers(monkeypatch) -> None:
    network, roster, tables = MemoryNetwork(), make_roster(1), make_tables()
    channel, events = network.channel("server-0"), []
    send = channel.send
    monkeypatch.setattr(channel, "send", lambda *message: (events.append("answer"), send(*message)))
    stop = threading.Event()

    class Told:
        def __call__(self, num_bytes: int, began_at: float) -> None:
            events.append(num_bytes)

        def check_memory(self, name: str, num_bytes: int) -> None:
            events.append(f"{name} has {num_bytes > 0}")

    server = Server("server-0", roster, tables)
    thread = threading.Thread(target=serve, args=(server, channel, stop.is_set, 0.01, Told()))
    thread.start()
    client = RemoteClient("worker", network.channel("worker"), roster, tables)
    try:
        for act in (lambda: client.fill_dense("dense", np.zeros(10, np.float32)), lambda: client.pull_dense("dense")):
            events.clear()
            act().result(60)
            num_bytes, memory, answer = events[:3]
            assert 40 < num_bytes < 400, "ten values on the way there or back"
            assert (memory, answer) == ("server-0 has True", "answer")
    finally:
        client.close()
        stop.set()
        thread.join(60)
        channel.close()


# --- the clock and the scale -----------------------------------------------------------------------------------------


def test_the_clock_gives_emulated_seconds_without_pauses() -> None:
    time = FakeTime()
    time.work(100.0)
    clock = DilatedClock(4.0, start_s=7.0, clock=time.clock)
    assert clock.now() == 7.0
    time.work(8.0)
    assert clock.now() == 9.0
    clock.pause()
    time.work(50.0)
    clock.pause()
    assert clock.now() == 9.0
    clock.resume()
    time.work(4.0)
    clock.resume()
    assert clock.now() == 10.0


def test_the_scale_leaves_half_of_every_core_free_and_is_round() -> None:
    assert needed_scale(1.0, 1.0, 1) == 6.0  # three times the computing, on a core that is half busy
    assert needed_scale(1.0, 1.0, 2) == 3.0
    assert needed_scale(1.0, 100.0, 2) == 0.03
    assert needed_scale(0.7, 60.0, 1) == 0.07
    assert needed_scale(1.01, 1.0, 1) == 6.1
    assert needed_scale(123.4, 1.0, 1) == 750.0
    assert needed_scale(1e-9, 1.0, 1) == 0.01


def test_cores_beyond_those_that_a_small_stage_can_use_do_not_count() -> None:
    assert needed_scale(1.0, 1.0, 64) == 2.0
    assert needed_scale(1.0, 1.0, 64, fewest_workers=4) == 0.5


def test_a_plan_that_takes_no_time_cannot_be_emulated() -> None:
    with pytest.raises(ConfigError, match="takes no time"):
        needed_scale(1.0, 0.0, 2)


@given(st.floats(1e-6, 100), st.floats(1e-6, 100), st.integers(1, 128), st.integers(1, 64))
def test_the_scale_is_enough_and_not_much_more(real_batch_s, tau_s, num_cores, fewest) -> None:
    scale = needed_scale(real_batch_s, tau_s, num_cores, fewest)
    needed = max(3 * real_batch_s / num_cores, real_batch_s / fewest) * 2 / tau_s
    assert scale >= needed * (1 - 1e-12)
    assert scale == 0.01 or scale <= needed * 1.1 * (1 + 1e-12)


@pytest.fixture
def job(tmp_path) -> Job:
    write_tiny(tmp_path / "train.parquet", 40)
    columns = Schema(dense=("a", "b"), slots=("s", "t"))
    return Job(
        model=Model(factory="ctr_dnn", args={"embedding_dim": 4, "hidden": [8]}),
        data=Data(train=str(tmp_path / "train.parquet"), columns=columns, batch_size=16),
        launcher="local",
        emulation=Emulation(),
    )


def test_the_second_of_two_batches_is_measured_and_torch_is_left_as_it_was(job: Job) -> None:
    readings = iter([10.0, 10.25])
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert measure_batch_s(job, lambda: next(readings)) == 0.25
    assert next(readings, None) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_a_short_batch_is_measured_as_part_of_a_whole_one(job: Job) -> None:
    readings = iter([0.0, 1.0])
    data = job.data.model_copy(update={"batch_size": 30})  # of 40 rows the second has 10
    assert measure_batch_s(job.model_copy(update={"data": data}), lambda: next(readings)) == 3.0


def test_the_scale_of_the_job_comes_first_and_is_measured_otherwise(job: Job, monkeypatch) -> None:
    profile = make_profile({"cpu": cost(2.0)}, server_s=8.0, batch_size=16)
    layout = layout_of(make_plan((0, 0, "cpu", 2)))
    given_scale = job.model_copy(update={"emulation": Emulation(scale=7.5)})
    assert choose_scale(given_scale, profile, layout, 2) == 7.5
    monkeypatch.setattr(emulation, "measure_batch_s", lambda _: 2.0)
    monkeypatch.setattr(emulation, "num_cores", lambda: 1)
    assert choose_scale(job, profile, layout, 2) == 3 * 2.0 / 0.5 / 4.0  # servers decide: 8 s a batch for two
    assert choose_scale(job, profile, layout, 0) == 3 * 2.0 / 0.5 / 1.0


def test_a_real_measurement_is_above_nothing(job: Job) -> None:
    assert measure_batch_s(job) > 0


def test_a_model_with_nothing_to_compute_is_not_emulated_faster_than_messages_travel(job: Job, monkeypatch) -> None:
    profile = make_profile({"cpu": cost(0.001)}, batch_size=16)
    layout = layout_of(make_plan((0, 0, "cpu", 1)))
    monkeypatch.setattr(emulation, "measure_batch_s", lambda _: 1e-6)
    monkeypatch.setattr(emulation, "num_cores", lambda: 2)
    lanes = emulation.OPERATION_S * 2 * layout.num_lanes
    least_s = emulation.LEAST_BATCH_S + lanes / 2 / emulation.BUSY
    assert choose_scale(job, profile, layout, 1) == pytest.approx(least_s / 0.001, rel=0.1)
