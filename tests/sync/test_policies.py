"""The policies by small examples."""

from __future__ import annotations

import pytest

import heterps
from heterps.errors import ConfigError
from heterps.sync import Event, make_policy
from heterps.sync.dynamic import Dynamic
from heterps.sync.literal import LiteralDynamic
from heterps.sync.predictors import Ema


def test_the_example_of_the_design() -> None:
    policy = heterps.sync.make_policy("dssp", workers=["a", "b"], lower=3, spread=12)
    assert policy.on_push("a", now=1.0) == ["a"]


def test_bsp_releases_all_when_the_last_has_pushed() -> None:
    policy = make_policy("bsp", workers="abc")
    assert policy.on_push("a", 1.0) == []
    assert policy.on_push("c", 2.0) == []
    assert policy.waiting == ["a", "c"]
    assert policy.on_push("b", 3.0) == ["b", "a", "c"]
    assert policy.rounds == 1


def test_a_worker_that_leaves_ends_the_round_it_kept_open() -> None:
    policy = make_policy("bsp", workers="abc")
    policy.on_push("a", 1.0)
    policy.on_push("c", 2.0)
    assert policy.on_leave("b", 3.0) == ["a", "c"]
    assert policy.rounds == 1
    assert policy.on_leave("a", 4.0) == []
    assert policy.rounds == 1, "nobody has pushed in the second round"


def test_a_worker_that_joins_takes_part_in_the_running_round() -> None:
    policy = make_policy("bsp", workers="ab")
    policy.on_push("a", 1.0)
    assert policy.on_join("c", 1.5) == ["c"]
    assert policy.on_push("b", 2.0) == []
    assert policy.on_push("c", 3.0) == ["c", "a", "b"]


def test_backup_workers_end_a_round_early_and_late_gradients_are_dropped_and_counted() -> None:
    policy = make_policy("bsp", workers="abc", backup=1)
    assert policy.on_push("a", 1.0) == []
    assert policy.on_push("b", 2.0) == ["b", "a"]
    assert policy.takes("a")
    assert not policy.takes("c")
    assert policy.on_push("c", 2.5) == ["c"], "whoever comes late goes on in the round that runs"
    assert policy.dropped == 1
    assert policy.takes("c")
    assert policy.on_push("c", 3.0) == []
    assert policy.on_push("a", 4.0) == ["a", "c"]
    assert (policy.rounds, policy.dropped) == (2, 1)


def test_who_joins_while_another_is_late_belongs_to_the_round_that_runs() -> None:
    policy = make_policy("bsp", workers="abc", backup=1)
    policy.on_push("a", 1.0)
    policy.on_push("b", 2.0)
    policy.on_join("d", 3.0)
    assert policy.takes("d"), "it has the newest weights"
    assert not policy.takes("c")
    assert policy.clocks.least == 0


def test_ssp_holds_back_only_who_is_too_far_ahead() -> None:
    policy = make_policy("ssp", workers="ab", lower=1)
    assert policy.on_push("a", 1.0) == ["a"]
    assert policy.on_push("a", 2.0) == []
    assert policy.on_push("b", 3.0) == ["b", "a"]
    assert policy.max_lead == 1


def test_those_who_wait_at_several_clocks_are_freed_each_in_its_turn() -> None:
    policy = make_policy("dssp", workers="abc", lower=0, spread=0)
    for worker in "ab":
        policy.on_push(worker, 1.0)
    assert policy.on_push("c", 2.0) == ["c", "a", "b"]
    policy.on_push("a", 3.0)
    assert policy.on_leave("b", 4.0) == []
    assert policy.on_push("c", 5.0) == ["c", "a"]


def test_when_the_slowest_leaves_all_that_it_held_back_go_on() -> None:
    policy = make_policy("ssp", workers="abcd", lower=2)
    for now in (1.0, 2.0, 3.0):
        for worker in "abc":
            policy.on_push(worker, now)
    assert policy.waiting == ["a", "b", "c"]
    assert policy.on_leave("d", 4.0) == ["a", "b", "c"]


def test_who_leaves_while_it_waits_is_not_woken_and_may_come_back() -> None:
    policy = make_policy("ssp", workers="ab", lower=0)
    policy.on_push("a", 1.0)
    policy.on_leave("a", 2.0)
    assert policy.on_push("b", 3.0) == ["b"]
    assert policy.on_join("a", 4.0) == ["a"]
    assert policy.clocks.of["a"] == 1


def test_who_joins_an_empty_job_starts_where_it_ended() -> None:
    policy = make_policy("ssp", workers="a")
    policy.on_push("a", 1.0)
    assert policy.on_leave("a", 2.0) == []
    policy.on_join("b", 3.0)
    assert policy.clocks.of["b"] == policy.clocks.least == policy.clocks.most == 1


def test_who_joins_an_empty_job_in_a_later_round_leads_nobody() -> None:
    policy = make_policy("bsp", workers="abc", backup=1)
    policy.on_push("a", 1.0)
    policy.on_push("b", 2.0)
    for worker in "abc":  # the last one is still in the round before
        policy.on_leave(worker, 3.0)
    policy.on_join("d", 4.0)
    assert policy.clocks.of["d"] == policy.clocks.least == policy.rounds == 1
    assert (policy.lead("d"), policy.max_lead) == (0, 1)


def test_who_missed_several_rounds_loses_one_gradient_and_takes_part_in_the_round_that_runs() -> None:
    policy = make_policy("bsp", workers="abc", backup=1)
    for now in (1.0, 2.0, 3.0):
        policy.on_push("a", now)
        policy.on_push("b", now)
    assert policy.rounds == 3
    assert policy.on_push("c", 4.0) == ["c"]
    assert policy.takes("c"), "it has the newest weights"
    assert policy.clocks.of["c"] == 3
    assert policy.on_push("c", 5.0) == []
    assert policy.on_push("a", 6.0) == ["a", "c"]
    assert policy.dropped == 1


def granted(kind: str, pushes: list[tuple[str, float]], workers: str) -> list[tuple[str, float, int]]:
    events: list[Event] = []
    policy = make_policy(kind, workers=workers, on_event=events.append)
    for worker, now in pushes:
        policy.on_push(worker, now)
    return [(event.worker, event.now, event.extra) for event in events if event.kind == "granted"]


def test_only_the_fastest_is_granted_more() -> None:
    """c takes 10 s. a is granted all that fit until then; b, ahead of c but behind a, waits."""
    pushes = [("a", 1.0), ("b", 1.5), ("c", 10.0), ("a", 11.0), ("a", 12.0), ("b", 12.5)]
    assert granted("dssp:0:9+fastest", pushes, "abc") == [("a", 11.0, 9)]
    earlier = [*pushes[:3], ("a", 11.0), ("b", 12.0)]  # as fast as a, at that moment
    assert granted("dssp:0:9+fastest", earlier, "abc") == [("a", 11.0, 9), ("b", 12.0, 4)]


def test_whoever_would_wait_is_granted_more_unless_only_the_fastest_is() -> None:
    """c takes 10 s. b is behind a, and takes 4 s: with 4 more iterations it pushes at 30 s, as c does."""
    pushes = [("a", 1.0), ("b", 1.5), ("c", 10.0), ("a", 11.0), ("a", 12.0), ("b", 14.0)]
    assert granted("dssp:0:9", pushes, "abc") == [("a", 11.0, 9), ("b", 14.0, 4)]


@pytest.mark.parametrize(("release", "goes_at"), [("next", 20.0), ("lower", 60.0)])
def test_whoever_waits_goes_on_at_the_next_push_of_the_slowest_or_at_lower(release: str, goes_at: float) -> None:
    """b takes 10 s. a has used up its grant at 15 s, 6 ahead; the bound is 1 + 4."""
    policy = make_policy("dssp", workers="ab", lower=1, spread=4, release=release)
    for worker, now in (("a", 1.0), ("a", 2.0), ("b", 10.0), *(("a", now) for now in (11.0, 12.0, 13.0, 14.0, 15.0))):
        policy.on_push(worker, now)
    assert (policy.lead("a"), policy.waiting) == (6, ["a"])
    released = {now: policy.on_push("b", now) for now in (20.0, 30.0, 40.0, 50.0, 60.0) if now <= goes_at}
    assert [now for now, who in released.items() if who == ["b", "a"]] == [goes_at]
    assert policy.lead("a") == {"next": 5, "lower": 1}[release]


def test_of_several_slowest_the_one_that_takes_longest_decides_a_grant() -> None:
    """b takes 8 s and c 2 s, whichever of them reached the lowest clock first: a is granted what fits into 8 s."""
    assert granted("dssp:0:9", [("a", 1.0), ("c", 2.0), ("b", 8.0), ("a", 9.0)], "abc") == [("a", 9.0, 7)]
    events: list[Event] = []
    policy = make_policy("dssp:0:9", workers="ab", on_event=events.append)
    policy.on_push("a", 1.0)
    policy.on_join("c", 7.0)
    policy.on_push("b", 8.0)
    assert policy.on_push("c", 9.0) == ["c", "a", "b"]
    policy.on_push("a", 10.0)
    assert [event.extra for event in events if event.kind == "granted"] == [7]


def test_who_leaves_and_comes_back_has_neither_its_grant_nor_its_times() -> None:
    events: list[Event] = []
    policy = make_policy("dssp:0:9", workers="ab", on_event=events.append)
    for worker, now in (("a", 1.0), ("b", 10.0), ("a", 11.0)):
        policy.on_push(worker, now)
    assert [event.extra for event in events if event.kind == "granted"] == [9]
    policy.on_leave("a", 12.0)
    policy.on_join("a", 13.0)
    assert policy.on_push("b", 14.0) == [], "a has not pushed since it came back, so when it does is not known"
    assert policy.on_push("a", 15.0) == ["a", "b"]
    policy.on_leave("b", 16.0)
    policy.on_join("b", 17.0)
    assert policy.on_push("a", 18.0) == [], "nor is it known of b, and the grant of before is gone"


def two_speeds(kind: str, until: float) -> tuple[list[Event], object]:
    """Of 1.0 and 2.3 seconds, on their own clocks; whoever waits is idle."""
    events: list[Event] = []
    policy = make_policy(kind, ["fast", "slow"], on_event=events.append)
    next_push = {"fast": 1.0, "slow": 2.3}
    took = dict(next_push)
    while min(next_push.values()) <= until:
        worker = min(next_push, key=lambda name: next_push[name])
        now = next_push.pop(worker)
        for released in policy.on_push(worker, now):
            next_push.setdefault(released, now + took[released])
    return events, policy


def test_released_at_lower_dssp_waits_rarely_and_long_where_ssp_waits_often() -> None:
    kinds = ("ssp:3", "dssp:3:12+fastest+lower", "dssp:3:12")
    waits = [sum(event.kind == "waits" for event in two_speeds(kind, 1000.0)[0]) for kind in kinds]
    assert waits == [433, 27, 426]


def test_the_printed_algorithm_grants_at_any_lead_and_gives_one_iteration_more() -> None:
    events, policy = two_speeds("dssp:3:12+literal", 1000.0)
    assert isinstance(policy, LiteralDynamic)
    assert max(event.lead for event in events if event.kind == "granted") > 3 + 12
    first = next(i for i, event in enumerate(events) if event.kind == "granted")
    grant = events[first].extra
    after = [event.kind for event in events[first + 1 :] if event.worker == "fast"]
    checked = next(i for i, kind in enumerate(after) if kind in ("granted", "waits"))
    assert after[:checked].count("pushed") == grant + 1


def test_the_printed_algorithm_sends_a_second_go_ahead() -> None:
    """After its grant the fast worker also stands in the queue, and is freed from there while it runs."""
    policy = make_policy("dssp:0:4+literal", ["fast", "slow"])
    assert isinstance(policy, LiteralDynamic)
    assert policy.on_push("fast", 1.0) == []
    assert policy.on_push("slow", 2.0) == ["slow", "fast"]
    assert policy.doubled == 0
    assert policy.on_push("fast", 3.0) == ["fast"], "granted"
    assert policy.on_push("slow", 4.0) == ["slow", "fast"], "freed, although it runs"
    assert policy.doubled == 1


def test_hysteresis_frees_at_a_smaller_lead() -> None:
    policy = make_policy("dssp:2:0+lower+hysteresis:2", workers="ab")
    for now in (1.0, 2.0, 3.0):
        policy.on_push("a", now)
    assert policy.waiting == ["a"]
    assert policy.on_push("b", 4.0) == ["b"]
    assert policy.on_push("b", 5.0) == ["b"]
    assert policy.on_push("b", 6.0) == ["b", "a"]


def test_nothing_is_granted_before_the_slowest_has_pushed() -> None:
    policy = make_policy("dssp:0:9", workers="ab")
    assert isinstance(policy, Dynamic)
    assert policy.on_push("a", 1.0) == []


def test_nothing_is_granted_while_one_of_the_slowest_has_not_pushed() -> None:
    """b is known to take 10 s, but c, which has just joined and is as slow as b, may come at any time."""
    events: list[Event] = []
    policy = make_policy("dssp:0:9", workers="ab", on_event=events.append)
    policy.on_push("a", 1.0)
    policy.on_push("b", 10.0)
    policy.on_join("c", 10.0)
    assert policy.on_push("a", 11.0) == []
    assert not [event for event in events if event.kind == "granted"]


@pytest.mark.parametrize(("predictor", "grants"), [("last", []), ("ema", []), ("elapsed", [8])])
def test_a_slow_down_is_seen_while_it_lasts_by_elapsed_alone(predictor: str, grants: list[int]) -> None:
    """b takes 1 s, then hangs. At 9 s by its last iteration it is due at once, so a may as well wait for it; it is 7 s
    late, so if it is as late again it comes at 16 s, where a can be after 8 iterations of 0.9 s."""
    events: list[Event] = []
    policy = make_policy("dssp", workers="ab", lower=8, spread=9, predictor=predictor, on_event=events.append)
    policy.on_push("a", 0.9)
    policy.on_push("b", 1.0)
    for i in range(2, 11):
        policy.on_push("a", 0.9 * i)
    assert [event.extra for event in events if event.kind == "granted"] == grants


def test_who_is_late_is_due_now_and_not_in_the_past() -> None:
    """b took 5 s and is due at 10 s; at 13 s its push is expected at once, not at 15 s as if it had come at 10 s."""
    events: list[Event] = []
    policy = make_policy("dssp:11:9", workers="ab", on_event=events.append)
    for worker, now in [("a", i) for i in range(1, 6)] + [("b", 5)] + [("a", i) for i in range(6, 14)]:
        policy.on_push(worker, float(now))
    assert events[-1] == Event("waits", "a", 13.0, 13, 12)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda policy: policy.on_push("z", 1.0), "z is none of the workers"),
        (lambda policy: policy.on_leave("z", 1.0), "z is none of the workers"),
        (lambda policy: policy.on_join("a", 1.0), "a joins, but it is here already"),
        (lambda policy: policy.on_push("b", -1.0), "time goes back: -1.0 comes after 1.0"),
        (lambda policy: policy.on_push("b", float("nan")), "time goes back"),
        (lambda policy: policy.on_push("b", float("inf")), "time goes back"),
        (lambda policy: policy.on_push("a", 2.0), "a pushes while it waits"),
    ],
)
def test_inputs_that_cannot_be_are_refused_and_change_nothing(act, text: str) -> None:
    events: list[Event] = []
    policy = make_policy("bsp", workers="ab", on_event=events.append)
    policy.on_push("a", 1.0)
    num_events, num_inputs = len(events), policy.num_inputs
    with pytest.raises(ValueError, match=text):
        act(policy)
    assert (len(events), policy.num_inputs) == (num_events, num_inputs)
    assert policy.on_push("b", 1.0) == ["b", "a"]


def test_the_moving_average_follows_a_change_slowly() -> None:
    ema = Ema()
    assert ema.busy_s("a") is None
    for busy_s, expected in ((10.0, 10.0), (20.0, 13.0), (20.0, 15.1)):
        ema.observe("a", busy_s)
        assert ema.busy_s("a") == ema.running_s("a", 100.0) == pytest.approx(expected)


@pytest.mark.parametrize("backup", [2, 3])
def test_as_many_backup_workers_as_workers_are_refused(backup: int) -> None:
    with pytest.raises(ConfigError, match="with 2 workers there can be at most 1 backup workers"):
        make_policy("bsp", workers="ab", backup=backup)
    assert make_policy("bsp", workers="ab", backup=1).on_push("a", 1.0) == ["a"]


def test_thousands_of_workers_cost_no_more_a_push() -> None:
    """The steps of a push do not grow with the workers: counted, as clocks tell nothing on a busy machine."""
    steps = {n: _steps_of_round(n) / n for n in (100, 2000)}
    assert steps[2000] < 1.5 * steps[100]


def _steps_of_round(num_workers: int) -> int:
    import sys

    policy = make_policy("ssp:1", [str(i) for i in range(num_workers)])
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        for now in range(1, 4):
            for i in range(num_workers):
                policy.on_push(str(i), float(now))
    finally:
        sys.settrace(None)
    return count
