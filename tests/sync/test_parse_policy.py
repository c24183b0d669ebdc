"""Policies by their words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.errors import ConfigError
from heterps.sync import ASP, BSP, DSSP, SSP, make_policy, parse_policy

configs = st.one_of(
    st.builds(BSP, backup=st.integers(0, 9)),
    st.just(ASP()),
    st.builds(SSP, lower=st.integers(0, 99)),
    st.builds(
        DSSP,
        lower=st.integers(5, 99),
        spread=st.integers(0, 99),
        predictor=st.sampled_from(["last", "ema", "elapsed"]),
        grant=st.sampled_from(["all", "fastest"]),
        release=st.sampled_from(["next", "lower"]),
    ),
    st.builds(DSSP, lower=st.integers(5, 99), release=st.just("lower"), hysteresis=st.integers(0, 5)),
    st.builds(DSSP, lower=st.integers(0, 9), literal=st.booleans()),
)


@given(configs)
def test_a_label_is_read_back(config) -> None:
    assert parse_policy(config.label) == config


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("bsp", BSP()),
        ("BSP+backup:1", BSP(backup=1)),
        ("asp", ASP()),
        ("ssp", SSP(lower=3)),
        ("ssp:0", SSP(lower=0)),
        ("dssp", DSSP(lower=3, spread=12)),
        ("dssp:1", DSSP(lower=1, spread=12)),
        (" dssp:3:4+ema+lower+hysteresis:2 ", DSSP(lower=3, spread=4, predictor="ema", release="lower", hysteresis=2)),
        ("dssp:3:12+fastest+lower", DSSP(grant="fastest", release="lower")),
        ("dssp:3:12+all+next", DSSP()),
        ("dssp:3:12+literal", DSSP(literal=True)),
    ],
)
def test_words_of_a_command_line(text: str, config) -> None:
    assert parse_policy(text) == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no policy ''"),
        ("sspx:3", "there is no policy 'sspx' among bsp, asp, ssp, dssp: write bsp"),
        ("asp:3", "asp takes no number"),
        ("ssp:3:4", "ssp takes lower only"),
        ("ssp:-1", "lower must be a whole number, at least 0"),
        ("ssp:1.5", "lower must be a whole number"),
        ("ssp:", "lower must be a whole number"),
        ("dssp:3:12:1", "dssp takes lower and spread only"),
        ("ssp:3+ema", "ssp has no option 'ema'"),
        ("dssp:3:12+foo", "dssp has no option 'foo'"),
        ("dssp:3:12+ema+elapsed", "predictor is given twice"),
        ("dssp:3:12+lower+next", "release is given twice"),
        ("dssp:3:12+hysteresis:1", r"hysteresis is about a release at lower: .* \+lower"),
        ("dssp:1:12+lower+hysteresis:2", r"hysteresis \(2\) must be at most lower \(1\)"),
        ("dssp:1:12+lower+hysteresis:1+literal", "knows no hysteresis"),
        ("dssp:1:99999999", "spread: must be at most 1000000"),
    ],
)
def test_wrong_words_are_refused_with_the_rule(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_policy(text)


def test_options_are_fields_and_go_before_words() -> None:
    assert make_policy("dssp", "ab", lower=1, spread=2).config == DSSP(lower=1, spread=2)
    assert make_policy("dssp:1:2", "ab", spread=5).config == DSSP(lower=1, spread=5)
    assert make_policy("ssp", "ab", s=4).config == SSP(lower=4)
    assert make_policy(SSP(lower=2), "ab").config == SSP(lower=2)


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("dssp", {"lower": -1}, r"policy dssp: lower: must be at least 0 \(got -1\)"),
        ("dssp", {"lowr": 1}, "lowr"),
        ("ssp", {"spread": 1}, "spread"),
        ("bsp", {"workers": ["a", "b", "a"]}, "the worker 'a' is given twice"),
    ],
)
def test_wrong_options_are_refused(kind: str, options: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_policy(kind, **({"workers": ["a", "b"]} | options))
