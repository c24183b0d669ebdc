"""What every policy promises, over random speeds, jitter and counts, with workers that come and go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_rules import Rules
from sync_play import Play, plays

EVERY = (
    "bsp", "asp", "ssp:0", "ssp:3", "dssp:0:4", "dssp:3:12", "dssp:3:12+fastest+lower", "dssp:2:5+ema",
    "dssp:2:5+elapsed+lower+hysteresis:2",
)  # fmt: skip


@pytest.mark.parametrize("kind", EVERY)
@given(play=plays(churn=True))
def test_no_wake_up_is_lost_or_doubled_and_somebody_always_runs(kind: str, play: Play) -> None:
    played = play.run(kind)  # looked at after every input
    assert played.leasts == sorted(played.leasts), "the lowest clock fell"


def hold(play: Play, kind: str, rules: Rules) -> None:
    played = play.run(kind)
    rules.hold([f"w{i}" for i in range(len(play.speeds))], [{"event": e.kind, **e._asdict()} for e in played.events])
    assert max((event.lead for event in played.kinds("released")), default=0) == played.policy.max_lead


@given(play=plays(churn=True), lower=st.integers(0, 5))
def test_ssp_keeps_its_rules(play: Play, lower: int) -> None:
    hold(play, f"ssp:{lower}", Rules(lower))


@given(
    play=plays(churn=True),
    lower=st.integers(0, 4),
    spread=st.integers(0, 9),
    predictor=st.sampled_from(["last", "ema", "elapsed"]),
    grant=st.sampled_from(["all", "fastest"]),
    release=st.sampled_from(["next", "lower"]),
)
def test_dssp_keeps_its_rules(play: Play, lower: int, spread: int, predictor: str, grant: str, release: str) -> None:
    hold(play, f"dssp:{lower}:{spread}+{predictor}+{grant}+{release}", Rules(lower, spread, release, grant))


@given(play=plays(churn=True), lower=st.integers(0, 4), spread=st.integers(1, 9))
def test_with_bounds_that_are_smaller_by_one_the_rules_do_not_hold(play: Play, lower: int, spread: int) -> None:
    """The rules can fail: whoever ran into the bound breaks them."""
    played = play.run(f"dssp:{lower}:{spread}")
    if played.policy.max_lead == lower + spread:
        with pytest.raises(AssertionError, match=r"\[[14]\]"):
            hold(play, f"dssp:{lower}:{spread}", Rules(lower, spread - 1, "next", "all"))


@given(play=plays(churn=True), lower=st.integers(0, 5))
def test_dssp_without_spread_is_ssp(play: Play, lower: int) -> None:
    ssp = play.run(f"ssp:{lower}").events
    assert play.run(f"dssp:{lower}:0").events == play.run(f"dssp:{lower}:0+fastest+lower").events == ssp


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


@pytest.mark.parametrize("kind", EVERY)
@given(play=plays())
def test_the_death_of_all_others_frees_whoever_waits(kind: str, play: Play) -> None:
    policy = play.run(kind).policy
    now = 1e9
    for worker in list(policy.clocks.of)[1:]:
        policy.on_leave(worker, now)
        assert len(policy.waiting) < len(policy.clocks.of)
    assert policy.waiting == []
