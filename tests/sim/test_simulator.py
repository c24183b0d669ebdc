"""Workers on a simulated clock: the figures that are known, and what must hold for any."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.errors import ConfigError
from heterps.sim import Hooks, Scenario, SimResult, Simulator, simulate
from heterps.sync import record
from heterps.sync.literal import LiteralDynamic
from heterps.sync.trace import replay_lines

EVERY = ("bsp", "bsp+backup:1", "asp", "ssp:0", "ssp:3", "dssp:3:12", "dssp:1:4+elapsed+lower+hysteresis:1")
TWO_SPEEDS = Scenario(workers=(1.0, 2.3), horizon_s=1000.0)


@pytest.mark.parametrize(
    ("policy", "pushes", "waits", "wait_s", "max_lead"),
    [
        ("bsp", 869, 435, 565, 0),
        ("ssp:3", 872, 433, 562, 3),
        ("dssp:3:12", 884, 426, 550, 15),
        ("dssp:3:12+fastest+lower", 879, 27, 555, 12),
        ("ssp:15", 884, 424, 550, 15),
        ("asp", 1434, 0, 0, 566),
        ("dssp:3:12+literal", 1434, 0, 0, 566),
    ],
)
def test_two_speeds(policy: str, pushes: int, waits: int, wait_s: int, max_lead: int) -> None:
    """By the paper's rules DSSP waits rarely, but as long in all; as printed it bounds nothing, and is ASP."""
    result = simulate(TWO_SPEEDS, policy)
    fast, slow = result.workers
    assert (result.pushes, fast.waits, round(result.wait_s), result.max_lead) == (pushes, waits, wait_s, max_lead)
    assert slow.waits == 0
    assert slow.pushes == 434


def test_a_transient_slow_down_is_hidden_by_a_lead() -> None:
    scenario = Scenario(
        workers="4x1.0", horizon_s=100.0, slowdowns=({"worker": "w0", "from_s": 20, "to_s": 24, "factor": 4},)
    )
    lost = {policy: 400 - simulate(scenario, policy).pushes for policy in ("bsp", "ssp:3", "asp")}
    assert lost == {"bsp": 12, "ssp:3": 3, "asp": 3}, "BSP loses three seconds of everybody, the others of one"


def test_a_lead_of_dssp_hides_what_passes_nearly_as_well_as_the_largest_bound_of_ssp() -> None:
    """Workers take turns at being four times slower, for 30 s of 100. With the paper's rules nothing is gained."""
    slow = [{"worker": f"w{i % 4}", "from_s": 100.0 * i, "to_s": 100.0 * i + 30, "factor": 4.0} for i in range(8)]
    scenario = Scenario(workers="4x1.0", jitter=0.1, slowdowns=slow, horizon_s=800.0)
    pushes = {
        policy: simulate(scenario, policy).pushes
        for policy in ("ssp:3", "dssp:3:12+fastest+lower", "dssp:3:12", "ssp:15")
    }
    gained = {policy: (n - pushes["ssp:3"]) / (pushes["ssp:15"] - pushes["ssp:3"]) for policy, n in pushes.items()}
    assert gained["dssp:3:12+fastest+lower"] < 0.2
    assert 0.8 < gained["dssp:3:12"] <= 1


def test_only_elapsed_grants_while_somebody_hangs() -> None:
    slow = {"worker": "w0", "from_s": 20.0, "to_s": 60.0, "factor": 60.0}
    scenario = Scenario(workers="4x1.0", horizon_s=59.0, slowdowns=(slow,), jitter=0.02)
    reached = {policy: simulate(scenario, policy).max_lead for policy in ("dssp:2:10", "dssp:2:10+elapsed")}
    assert reached["dssp:2:10"] < reached["dssp:2:10+elapsed"] <= 12


def test_staleness_of_equal_workers_is_that_of_a_round_robin() -> None:
    result = simulate(Scenario(workers="5x1.0", horizon_s=100.0), "asp")
    assert result.staleness == {0: 1, 1: 1, 2: 1, 3: 1, 4: 496}
    assert result.mean_staleness == (0 + 1 + 2 + 3 + 4 * 496) / 500


def test_nobody_is_stale_under_bsp_and_a_round_is_one_update() -> None:
    result = simulate(Scenario(workers="5x1.0,2x1.5", jitter=0.3, iterations=40), "bsp")
    assert result.staleness == {0: 280}
    assert result.updates == 40


def test_backup_workers_drop_late_gradients_and_say_so() -> None:
    scenario = Scenario(workers="4x1.0,3.5", horizon_s=100.0)
    plain, backed = simulate(scenario, "bsp"), simulate(scenario, "bsp+backup:1")
    assert (plain.updates, plain.dropped) == (28, 0)
    assert backed.updates == 100
    assert backed.dropped == backed.workers[4].dropped == backed.workers[4].pushes == 28
    assert sum(backed.staleness.values()) == backed.pushes - backed.dropped


def test_the_server_takes_one_push_after_the_other() -> None:
    """Ten workers push at once at 1 s; the server needs 0.1 s for each."""
    result = simulate(Scenario(workers="10x1.0", iterations=1, server_s=0.1), "asp")
    assert result.end_s == pytest.approx(2.0)
    assert [worker.push_s for worker in result.workers] == pytest.approx([0.1 * n for n in range(1, 11)])
    busy = simulate(Scenario(workers="100x1.0", horizon_s=50.0, server_s=0.125), "asp")
    assert busy.pushes == 49 * 8, "the server is the bottleneck: eight a second after the first second"


def test_a_message_takes_its_latency_both_ways() -> None:
    result = simulate(Scenario(workers=(1.0,), iterations=10, latency_s=0.25), "bsp")
    assert result.end_s == pytest.approx(15.0)
    assert result.workers[0].compute_s == pytest.approx(10.0)
    assert result.workers[0].push_s == pytest.approx(5.0)


@pytest.mark.parametrize("policy", ["bsp", "ssp:2", "dssp:2:6"])
def test_a_death_stops_the_others_until_it_is_noticed_and_frees_them_then(policy: str) -> None:
    scenario = Scenario(workers="3x1.0", horizon_s=200.0, deaths=({"worker": "w1", "at_s": 50.5, "noticed_s": 100},))
    first, dead, last = simulate(scenario, policy).workers
    assert (dead.pushes, dead.left_s) == (50, 50.5)
    assert first.pushes == last.pushes
    assert 200 - 100 - 1 <= first.pushes <= 200 - 100 + 8
    assert 90 <= first.wait_s <= 101


def test_a_push_on_its_way_dies_with_its_worker() -> None:
    died = ({"worker": "w0", "at_s": 1.5},)
    result = simulate(Scenario(workers=(1.0, 3.0), iterations=2, latency_s=1.0, deaths=died), "asp")
    assert [worker.pushes for worker in result.workers] == [0, 2]


@pytest.mark.parametrize("policy", ["bsp", "asp", "ssp:1", "dssp:2:6"])
def test_who_is_replaced_goes_on_and_its_push_on_its_way_is_lost(policy: str) -> None:
    died = ({"worker": "w1", "at_s": 4.5, "noticed_s": 0.25},)
    scenario = Scenario(workers="2x1.0", horizon_s=20.0, deaths=died, replaced_s=0.5, latency_s=0.1, server_s=0.3)
    calm = simulate(scenario.model_copy(update={"deaths": ()}), policy).workers[1]
    first, replaced = simulate(scenario, policy).workers
    assert replaced.left_s is None
    assert calm.pushes - 2 <= replaced.pushes < calm.pushes
    assert replaced.compute_s + replaced.push_s + replaced.wait_s == pytest.approx(20.0 - 0.75)
    assert first.compute_s + first.push_s + first.wait_s == pytest.approx(20.0)


def test_who_joins_starts_with_the_lowest_clock() -> None:
    scenario = Scenario(workers="2x1.0", horizon_s=20.0, joins=({"at_s": 10.5, "workers": "2x0.5"},))
    result = simulate(scenario, "ssp:1")
    assert [worker.name for worker in result.workers] == ["w0", "w1", "w2", "w3"]
    assert [worker.joined_s for worker in result.workers] == [0, 0, 10.5, 10.5]
    assert result.workers[0].pushes == 20
    assert 9 <= result.workers[3].pushes <= 12
    never = simulate(scenario.model_copy(update={"horizon_s": 10.0}), "ssp:1")
    assert len(never.workers) == 2, "who would join after the end was not there"


@pytest.mark.parametrize("policy", ["bsp", "ssp:1"])
def test_who_dies_as_it_joins_holds_nobody_back(policy: str) -> None:
    joins, deaths = ({"at_s": 3.0, "workers": 1.0},), ({"worker": "w2", "at_s": 3.0, "noticed_s": 0.5},)
    result = simulate(Scenario(workers="2x1.0", horizon_s=20.0, joins=joins, deaths=deaths), policy)
    assert [worker.pushes for worker in result.workers] == [20, 20, 0]
    assert result.workers[2].joined_s == result.workers[2].left_s == 3.0


def test_who_is_done_leaves_and_holds_nobody_back() -> None:
    result = simulate(Scenario(workers=(1.0, 2.0), iterations=10), "ssp:1")
    assert [worker.pushes for worker in result.workers] == [10, 10]
    assert [worker.left_s for worker in result.workers] == [17.0, 20.0]
    assert result.end_s == 20.0
    joined = simulate(Scenario(workers=(1.0,), joins=({"at_s": 5.5, "workers": 1.0},), iterations=10), "bsp")
    assert [worker.pushes for worker in joined.workers] == [10, 10]


def test_it_ends_when_all_are_done_whatever_would_come_after() -> None:
    scenario = Scenario(workers="2x1.0", iterations=5, deaths=({"worker": "w0", "at_s": 400, "noticed_s": 9},))
    assert simulate(scenario, "bsp").end_s == 5.0
    assert simulate(scenario.model_copy(update={"horizon_s": 300.0}), "bsp").end_s == 5.0
    assert simulate(scenario.model_copy(update={"horizon_s": 4.5}), "bsp").end_s == 4.5


speeds = st.lists(st.floats(0.1, 5.0), min_size=2, max_size=6).map(tuple)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    workers = draw(speeds)
    joined = draw(st.one_of(st.just(()), speeds))
    joined_s = draw(st.floats(0, 40))
    who = st.sampled_from([f"w{i}" for i in range(len(workers))])
    anybody = st.sampled_from([f"w{i}" for i in range(len(workers) + len(joined))])
    starts = draw(st.lists(st.floats(0, 30), max_size=2))
    slowdowns = [{"worker": draw(who), "from_s": s, "to_s": s + 5, "factor": draw(st.floats(0.5, 9))} for s in starts]
    dead = draw(st.lists(anybody, unique=True, max_size=len(workers) - 1))
    deaths = [
        {"worker": name, "at_s": draw(st.floats(0 if int(name[1:]) < len(workers) else joined_s, 40)), "noticed_s": 2}
        for name in dead
    ]
    return Scenario(
        workers=workers,
        jitter=draw(st.sampled_from([0.0, 0.2])),
        slowdowns=slowdowns,
        deaths=deaths,
        joins=[{"at_s": joined_s, "workers": joined}] if joined else [],
        server_s=draw(st.sampled_from([0.0, 0.05])),
        latency_s=draw(st.sampled_from([0.0, 0.1])),
        horizon_s=draw(st.floats(1.0, 60.0)),
        iterations=draw(st.sampled_from([None, 20])),
        seed=draw(st.integers(0, 1000)),
    )


class Journal(Hooks):
    """Checks that the server and the workers do things in an order that can be."""

    def __init__(self) -> None:
        self.now, self.version = 0.0, 0
        self.read: dict[str, int] = {}
        self.staleness: Counter[int] = Counter()
        self.rounds, self.dropped = 0, 0
        self.in_round: Counter[str] = Counter()
        self.in_rounds = False

    def at(self, now: float) -> None:
        assert now >= self.now
        self.now = now

    def start(self, worker: str, now: float) -> bool:
        self.at(now)
        assert worker not in self.read, "starts twice"
        self.read[worker] = self.version
        return True

    def push(self, worker: str, now: float) -> None:
        self.at(now)
        self.staleness[self.version - self.read.pop(worker)] += 1
        self.in_round[worker] += 1
        self.version += not self.in_rounds

    def drop(self, worker: str, now: float) -> None:
        self.at(now)
        assert self.read.pop(worker) < self.version
        self.dropped += 1

    def end_round(self, now: float) -> None:
        self.at(now)
        assert self.in_round
        assert max(self.in_round.values()) == 1
        self.in_round.clear()
        self.version += 1


@settings(max_examples=60)
@pytest.mark.parametrize("policy", EVERY)
@given(scenario=scenarios())
def test_what_holds_for_any_scenario(policy: str, scenario: Scenario) -> None:
    journal, trace = Journal(), io.StringIO()
    simulator = Simulator(scenario, policy, hooks=journal, window=(0.0, 1e9))
    journal.in_rounds = simulator.policy.config.in_rounds
    record(simulator.policy, trace)
    result = simulator.run()
    dead = {death.worker for death in scenario.deaths}
    for worker in result.workers:
        if worker.name in dead:
            journal.read.pop(worker.name, None)
    assert journal.staleness == result.staleness
    assert (journal.version, journal.dropped) == (result.updates, result.dropped)
    assert result.pushes == sum(worker.pushes for worker in result.workers)
    assert result.end_s <= scenario.horizon_s
    check_times(result)
    replay_lines(io.StringIO(trace.getvalue()))
    assert simulate(scenario, policy).as_json() == result.as_json(), "looking at it changed it"
    bound = {"ssp:0": 0, "ssp:3": 3, "dssp:3:12": 15, "dssp:1:4+elapsed+lower+hysteresis:1": 5, "bsp": 0}.get(policy)
    assert bound is None or result.max_lead <= bound


def check_times(result: SimResult) -> None:
    """Each worker does one thing after the other from when it joins to when it leaves, and nothing is left out."""
    for worker in result.workers:
        there_s = (result.end_s if worker.left_s is None else worker.left_s) - worker.joined_s
        assert worker.compute_s + worker.push_s + worker.wait_s == pytest.approx(there_s, abs=1e-6)
        place = worker.joined_s
        for segment in worker.segments:
            assert segment.start == pytest.approx(place, abs=1e-9)
            assert segment.end > segment.start
            place = segment.end
        for kind in ("compute", "push", "wait"):
            spent = sum(segment.end - segment.start for segment in worker.segments if segment.kind == kind)
            assert spent == pytest.approx(getattr(worker, f"{kind}_s"), abs=1e-6)


def test_a_second_go_ahead_lies_there_until_it_is_needed() -> None:
    """As printed, DSSP sends some: nobody runs twice at once, whoever finds one goes on, and all of it replays."""
    journal, trace = Journal(), io.StringIO()
    simulator = Simulator(Scenario(workers="4x1.0,2.3", jitter=0.3, horizon_s=300.0), "dssp:2:6+literal", hooks=journal)
    record(simulator.policy, trace)
    result = simulator.run()
    assert isinstance(simulator.policy, LiteralDynamic)
    assert simulator.policy.doubled > 0
    assert result.max_lead > 2 + 6
    assert journal.staleness == result.staleness
    assert isinstance(replay_lines(io.StringIO(trace.getvalue())), LiteralDynamic)


def test_segments_are_kept_for_the_window_only() -> None:
    result = simulate(TWO_SPEEDS, "ssp:3", window=(100.0, 110.0))
    kept = [segment for worker in result.workers for segment in worker.segments]
    assert all(segment.end > 100.0 and segment.start < 110.0 for segment in kept)
    assert 10 < len(kept) < 40
    assert all(worker.segments == () for worker in simulate(TWO_SPEEDS, "ssp:3").workers)


def test_a_seed_reproduces_and_another_does_not() -> None:
    scenario = Scenario(workers="4x1.0,2.3", jitter=0.3, horizon_s=200.0, seed=1)
    assert simulate(scenario, "dssp:3:12") == simulate(scenario, "dssp:3:12")
    other = scenario.model_copy(update={"seed": 2})
    assert simulate(scenario, "dssp:3:12").wait_s != simulate(other, "dssp:3:12").wait_s


def test_jitter_has_the_mean_and_deviation_it_says() -> None:
    result = simulate(Scenario(workers="1x2.0", jitter=0.5, iterations=20_000), "asp", window=(0.0, 1e9))
    took = [segment.end - segment.start for segment in result.workers[0].segments]
    mean = sum(took) / len(took)
    deviation = (sum((seconds - mean) ** 2 for seconds in took) / len(took)) ** 0.5
    assert mean == pytest.approx(2.0, rel=0.02)
    assert deviation == pytest.approx(1.0, rel=0.05)


def test_an_iteration_takes_as_long_under_any_policy() -> None:
    """So that a comparison compares policies and not luck."""
    scenario = Scenario(workers="3x1.0", jitter=0.5, iterations=30, seed=3)
    busy = {policy: [worker.compute_s for worker in simulate(scenario, policy).workers] for policy in ("bsp", "asp")}
    assert busy["bsp"] == pytest.approx(busy["asp"])


def test_progress_is_told() -> None:
    heard: list[tuple[float, int]] = []
    simulate(Scenario(workers="10x1.0", iterations=1000), "asp", on_progress=lambda *told: heard.append(told))
    assert [pushes for _, pushes in heard] == [4096, 8192]


def test_a_policy_that_does_not_fit_the_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1 backup workers"):
        simulate(TWO_SPEEDS, "bsp+backup:2")


class Supply(Hooks):
    """So many iterations for all workers together."""

    def __init__(self, num: int) -> None:
        self.left = num

    def start(self, worker: str, now: float) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize("policy", EVERY)
def test_workers_leave_when_there_is_nothing_left_to_do(policy: str) -> None:
    scenario = Scenario(workers=(1.0, 2.3, 0.4), horizon_s=1000.0)
    result = simulate(scenario, policy, hooks=Supply(50))
    assert result.pushes == 50
    assert result.end_s < 1000.0
    assert all(worker.left_s is not None for worker in result.workers)
    assert sum(result.staleness.values()) + result.dropped == 50
