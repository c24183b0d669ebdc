import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_run import BUSY, EMULATED, LATE, VIEW

from heterps.report.emulated import banner, late_stages, late_warnings, scale_of, seconds_word
from heterps.report.page.live import render_status


def test_emulated_figures_are_marked_with_their_scale_and_real_ones_are_not():
    assert "one of their seconds takes 28 real ones" in banner(EMULATED)
    assert (scale_of(EMULATED), seconds_word(EMULATED)) == (28.0, ", emulated")
    assert (scale_of(VIEW), seconds_word(VIEW)) == (1.0, "")


def test_a_stage_that_this_machine_is_too_slow_for_is_named_with_by_how_much_and_what_to_do():
    late = {**VIEW, **EMULATED, "stages": LATE, "predicted_throughput": 1001.0, "samples_per_s": 500.0}
    (text,) = late_warnings(late)
    assert "stage 2 (v100) was late by 12.0 s of this machine, 45% of its workers' time" in text
    assert "stage 1" not in text
    assert text.endswith("raise emulation.scale to 57"), "half as fast as predicted: twice the scale, and not less"


@pytest.mark.parametrize("known", [{}, {"predicted_throughput": None}, {"predicted_throughput": 400.0}])
def test_without_a_prediction_that_was_missed_no_scale_is_told(known):
    (text,) = late_warnings({**VIEW, **EMULATED, "stages": LATE, "samples_per_s": 500.0, **known})
    assert text.endswith("raise emulation.scale above 28")


def test_who_keeps_up_is_not_warned():
    assert late_warnings({**VIEW, **EMULATED}) == []
    slightly = [BUSY | {"late": 0.049, "late_s": 1.0}]
    assert late_warnings({**VIEW, **EMULATED, "stages": slightly}) == []


@pytest.mark.parametrize("figures", [{}, EMULATED, {"stages": LATE}, {**EMULATED, "stages": [BUSY | {"late": None}]}])
def test_nothing_is_late_where_nothing_is_emulated_or_known(figures):
    assert late_stages(figures) == []
    assert late_warnings(figures) == []


@given(st.floats(0.01, 1e6), st.floats(1.0, 1e9), st.floats(1.001, 1e6))
def test_the_scale_that_is_told_is_enough_and_has_two_digits(scale, measured, times):
    figures = {"predicted_throughput": measured * times, "samples_per_s": measured, "stages": LATE}
    (text,) = late_warnings({"emulated": {"scale": scale}, **figures})
    told = float(text.rsplit(" ", 1)[1])
    assert told >= scale * times * (1 - 1e-6)
    assert told <= scale * times * 1.11
    assert float(f"{told:.1e}") == told


def test_a_live_page_says_how_long_the_rest_takes_here() -> None:
    stage = {"resource": "v100", "workers": 1, "samples_per_s": 1000.0, "queue": 0.0}
    status = {"samples": 1000, "total": 61_000, "seconds": 1.0, "usd": 0.1, "stages": [stage]}
    assert "1 min 0 s left<" in render_status(status, None)
    assert "1 min 0 s left, emulated; 2 h 0 min here<" in render_status(status | {"emulated": {"scale": 120.0}}, None)
