import pytest

from heterps.report.figures import duration, plural, rate, ratio, short, usd


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 USD"), (0.04, "0.04 USD"), (0.5, "0.50 USD"), (0.042, "0.042 USD"), (0.000314, "0.00031 USD"),
        (2.42, "2.42 USD"), (1234.5, "1,234.50 USD"), (None, "undefined"),
    ],
)  # fmt: skip
def test_a_cost_shows_the_digits_that_matter_and_never_an_exponent(value, text):
    assert usd(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 0 s"), (185.2, "3 min 5 s"), (3599.4, "59 min 59 s"),
        (3599.9, "1 h 0 min"), (7860, "2 h 11 min"), (47 * 3600, "47 h 0 min"), (3 * 86400 + 4 * 3600, "3 d 4 h"),
        (59.96, "1 min 0 s"), (None, "undefined"), (0.1234, "0.12 s"), (0.0567, "0.057 s"), (0.996, "1.0 s"),
        (0.00004, "0.000040 s"), (1.04, "1.0 s"),
    ],
)  # fmt: skip
def test_a_duration_has_two_units_at_most(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.75, "0.75"), (999, "999"), (250_000, "250k"), (1_500_000, "1.5M"), (2e9, "2B")]
)
def test_an_axis_label_is_short(value, text):
    assert short(value) == text


def test_what_is_undefined_says_so():
    assert ratio(None) == rate(None) == "undefined"
    assert ratio(0.77551) == "0.7755"
    assert rate(34786.2) == "34,786"
    assert rate(3.14) == "3.1"


def test_one_is_not_plural():
    assert plural(1, "row") == "1 row"
    assert plural(2000, "row") == "2,000 rows"
