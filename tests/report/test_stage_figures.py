import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_run import BUSY, STAGES, a_stage

from heterps.report.stage_figures import bottleneck, busiest, cells, group_title, in_step, percent

NOTHING = {"compute": None, "communicate": None, "wait": None}


def test_the_stage_that_waits_least_is_the_bottleneck():
    assert bottleneck(STAGES) == 1
    assert bottleneck([BUSY, a_stage(), a_stage()]) == 0


@pytest.mark.parametrize("stages", [[BUSY], [BUSY, a_stage(**NOTHING)], []])
def test_of_one_stage_or_of_stages_that_have_told_nothing_none_is_the_bottleneck(stages):
    assert bottleneck(stages) is None


def test_one_phrase_tells_of_the_bottleneck_what_it_does():
    assert busiest(STAGES) == "bottleneck stage 2 (v100): compute 90%, communicate 5%, wait 5%"
    assert busiest([a_stage()]) == "stage 1 (cpu): compute 20%, communicate 10%, wait 70%"
    assert busiest([a_stage(**NOTHING), a_stage(**NOTHING)]) == ""


@given(st.tuples(st.floats(0.001, 1), st.floats(0, 1), st.floats(0, 1)), st.integers(1, 60))
def test_a_bar_is_as_wide_as_it_should_be_whatever_the_shares(parts, width):
    shares = [part / sum(parts) for part in parts]
    stage = dict(zip(("compute", "communicate", "wait"), shares, strict=True))
    bar = cells(stage, width)
    assert sum(len(text) for _, text in bar) == width
    for (_, text), share in zip(bar, shares, strict=True):
        assert abs(len(text) - share * width) <= 1


def test_nothing_is_drawn_of_what_is_not_known():
    assert cells(a_stage(**NOTHING), 10) == []
    assert percent(None) == "-"


def test_people_count_stages_from_one():
    assert group_title("0") == "stage 1"
    assert group_title("0-2-3") == "stages 1, 3 and 4"


def test_the_policy_comes_with_staleness_and_the_largest_leads():
    told = in_step({"sync": "dssp:3:12", "staleness": 1.254, "max_lead": {"0": 4, "1-2": 5}})
    assert told == "dssp:3:12; mean staleness 1.25 (updates of others); largest lead 4 (stage 1), 5 (stages 2 and 3)"
    assert in_step({"sync": "bsp", "max_lead": {"0": 0}}) == "bsp; mean staleness 0 (updates of others)"
