from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.config import BSP
from heterps.errors import ConfigError
from heterps.sim import Scenario
from heterps.sim.variants import Variant, default_variants, parse_variant, parse_variants
from heterps.sync.shares import fitted_sizes

LABELS = (
    "bsp", "asp", "ssp:3", "dssp:3:12", "bsp+backup:1", "bsp+fitted", "bsp+summed", "bsp+fitted+summed", "asp+damped",
    "asp+compensated:0.04", "dssp:3:12+elapsed+damped+compensated:0.5", "dssp:3:12+literal", "bsp+backup:1+fitted",
)  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_read_back(label: str) -> None:
    assert parse_variant(label).label == label


def test_the_order_of_words_and_their_case_do_not_matter() -> None:
    assert parse_variant("DSSP:3:12+Damped+elapsed") == parse_variant("dssp:3:12+elapsed+damped")
    assert parse_variant("asp+compensated") == parse_variant("asp+compensated:0.04")
    assert parse_variant("bsp") == Variant(BSP())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bsp+damped", "nothing is stale"),
        ("bsp+compensated", "nothing is stale"),
        ("asp+fitted", r"\+fitted and \+summed are for bsp"),
        ("ssp:3+summed", r"\+fitted and \+summed are for bsp"),
        ("asp+damped+damped", "damped is given twice"),
        ("asp+damped:3", "damped takes no number"),
        ("asp+compensated:0", "number above 0"),
        ("asp+compensated:much", "number above 0"),
        ("asp+compensated:nan", "number above 0"),
        ("asp+quick", "has no option 'quick'"),
        ("fsp", "there is no policy 'fsp'"),
        ("", "there is no policy ''"),
    ],
)
def test_a_wrong_word_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_variant(text)


def test_a_list_of_words_has_each_once() -> None:
    assert [variant.label for variant in parse_variants("bsp, asp+damped")] == ["bsp", "asp+damped"]
    with pytest.raises(ConfigError, match=r"asp\+compensated:0.04 is there twice"):
        parse_variants("asp+compensated,bsp,asp+compensated:0.04")


@given(
    seconds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=3),
    num_samples=st.integers(3, 12),
)
def test_no_other_division_of_a_batch_is_done_sooner(seconds: list[float], num_samples: int) -> None:
    sizes = fitted_sizes(seconds, num_samples)
    every = itertools.product(range(1, num_samples + 1), repeat=len(seconds))
    soonest = min(
        max(size * s for size, s in zip(some, seconds, strict=True)) for some in every if sum(some) == num_samples
    )
    assert sum(sizes) == num_samples
    assert min(sizes) >= 1
    assert max(size * s for size, s in zip(sizes, seconds, strict=True)) == soonest


def test_fitted_workers_have_the_samples_of_equal_ones_and_the_seconds_of_their_own() -> None:
    scenario = Scenario(workers="1.0,3.0", horizon_s=10.0)
    fitted, sizes = parse_variant("bsp+fitted").fit(scenario, 16)
    assert sizes == {"w0": 12, "w1": 4}
    assert fitted.workers == pytest.approx((0.75, 0.75))
    equal, sizes = parse_variant("bsp").fit(scenario, 16)
    assert sizes == {"w0": 8, "w1": 8}
    assert equal.workers == (0.5, 1.5)
    assert parse_variant("asp").fit(scenario, 16) == (scenario, {"w0": 16, "w1": 16})
    with pytest.raises(ConfigError, match="1 samples cannot be divided among 2 workers"):
        parse_variant("bsp").fit(scenario, 1)


@pytest.mark.parametrize(
    "change", [{"deaths": [{"worker": "w0", "at_s": 1}]}, {"joins": [{"at_s": 1, "workers": "1"}]}]
)
def test_batches_are_not_fitted_to_workers_that_come_and_go(change: dict[str, object]) -> None:
    scenario = Scenario.model_validate({"workers": "1.0,3.0", "horizon_s": 10.0, **change})
    with pytest.raises(ConfigError, match="leave out joins and deaths"):
        parse_variant("bsp+fitted").fit(scenario, 16)
    assert "bsp+fitted" not in [variant.label for variant in default_variants(scenario)]


@pytest.mark.parametrize(("workers", "more"), [("4x1.0", []), ("1.0,2.3", ["bsp+fitted"]), ("1.0", [])])
def test_what_is_compared_by_default_fits_the_workers_and_can_be_trained(workers: str, more: list[str]) -> None:
    variants = default_variants(Scenario.model_validate({"workers": workers, "iterations": 1}))
    assert [variant.label for variant in variants] == ["bsp", "asp", "ssp:3", "dssp:3:12", *more]
    assert all(variant.can_train for variant in variants)
