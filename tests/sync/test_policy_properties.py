"""What every policy promises, over random speeds, jitter and counts, with workers that come and go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sync_play import Play, Played, plays

EVERY = ("bsp", "asp", "ssp:0", "ssp:3", "dssp:0:4", "dssp:3:12", "dssp:2:5+ema", "dssp:2:5+elapsed+hysteresis:2")


@pytest.mark.parametrize("kind", EVERY)
@given(play=plays(churn=True))
def test_no_wake_up_is_lost_or_doubled_and_somebody_always_runs(kind: str, play: Play) -> None:
    played = play.run(kind)  # looked at after every input
    assert played.leasts == sorted(played.leasts), "the lowest clock fell"


@given(play=plays(churn=True), lower=st.integers(0, 5))
def test_ssp_starts_no_iteration_above_its_bound(play: Play, lower: int) -> None:
    played = play.run(f"ssp:{lower}")
    leads = [event.lead for event in played.kinds("released")]
    assert max(leads, default=0) <= lower
    assert max(leads, default=0) == played.policy.max_lead


@given(
    play=plays(churn=True),
    lower=st.integers(0, 4),
    spread=st.integers(0, 9),
    extra=st.sampled_from(["", "+ema", "+elapsed"]),
)
def test_dssp_starts_no_iteration_above_lower_and_spread(play: Play, lower: int, spread: int, extra: str) -> None:
    played = play.run(f"dssp:{lower}:{spread}{extra}")
    assert max((event.lead for event in played.kinds("released")), default=0) <= lower + spread
    for event in played.kinds("granted"):
        assert 0 < event.extra <= min(spread, lower + spread + 1 - event.lead)


@given(play=plays(churn=True), lower=st.integers(0, 5))
def test_dssp_without_spread_is_ssp(play: Play, lower: int) -> None:
    assert play.run(f"dssp:{lower}:0").events == play.run(f"ssp:{lower}").events


@given(play=plays())
def test_ssp_of_bound_zero_has_the_counts_of_bsp(play: Play) -> None:
    assert play.run("ssp:0").pushes == play.run("bsp").pushes


@given(play=plays(churn=True))
def test_ssp_of_a_bound_never_reached_is_asp_and_nobody_waits(play: Play) -> None:
    asp = play.run("asp")
    assert asp.events == play.run("ssp:1000").events
    assert asp.kinds("waits") == []


@given(play=plays(churn=True), kind=st.sampled_from(EVERY))
def test_the_same_inputs_give_the_same_decisions(play: Play, kind: str) -> None:
    assert play.run(kind).events == play.run(kind).events


@given(play=plays(), backup=st.integers(0, 2))
def test_a_round_is_one_update_that_everybody_in_it_reads(play: Play, backup: int) -> None:
    if backup >= len(play.speeds):
        return
    played = play.run(f"bsp+backup:{backup}" if backup else "bsp")
    read = Counter(dict.fromkeys(played.policy.clocks.of, 0))  # the round whose weights each worker has
    pushed: Counter[int] = Counter()
    rounds = 0
    for event in played.events:
        if event.kind == "pushed":
            assert read[event.worker] == rounds, "a gradient of an older version is applied"
            pushed[rounds] += 1
        elif event.kind == "dropped":
            assert read[event.worker] < rounds
        elif event.kind == "released":
            if pushed[rounds] >= len(play.speeds) - backup:
                rounds += 1
            read[event.worker] = rounds
    assert rounds == played.policy.rounds
    assert played.policy.dropped == len(played.kinds("dropped"))
    if backup == 0:
        assert played.policy.dropped == played.policy.max_lead == 0


@given(play=plays(), lower=st.integers(0, 3), spread=st.integers(1, 9))
def test_a_grant_gives_so_many_iterations_before_the_next_check(play: Play, lower: int, spread: int) -> None:
    """From a grant of r on, r go-aheads in a row are not looked at; the first push after them is."""
    played: Played = play.run(f"dssp:{lower}:{spread}")
    left: dict[str, int] = {}
    for event in played.events:
        if event.kind == "granted":
            assert left.get(event.worker, 0) == 0, "granted again before the grant was used up"
            left[event.worker] = event.extra
        elif event.kind == "released" and left.get(event.worker):
            left[event.worker] -= 1
        elif event.kind == "released":
            assert event.lead <= lower, "went on above the lower bound without a grant"
        elif event.kind == "waits":
            assert left.get(event.worker, 0) == 0, "waits although its grant is not used up"


@pytest.mark.parametrize("kind", EVERY)
@given(play=plays())
def test_the_death_of_all_others_frees_whoever_waits(kind: str, play: Play) -> None:
    policy = play.run(kind).policy
    now = 1e9
    for worker in list(policy.clocks.of)[1:]:
        policy.on_leave(worker, now)
        assert len(policy.waiting) < len(policy.clocks.of)
    assert policy.waiting == []
