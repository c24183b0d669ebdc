"""The explanation of a plan in words."""

from __future__ import annotations

from plans import make_plan, make_profile, recording_console, text_of

from heterps.planning.explain import Explanation, LayerMove, NeighbourPlan, Sensitivity, Station
from heterps.report.terminal.plan_explained import cheaper_words, faster_words, show_explanation

PROFILE = make_profile(3, "cpu", "v100")
PLAN = make_plan(("cpu", 1, 4), ("v100", 2, 3), usd=100.0, throughput=20_000.0)
STATIONS = (Station("layer0", "cpu", 4, 0.01, 0.02, 1.0), Station("servers", "cpu", 2, 0.015, 0.0, 0.75))
BELOW = NeighbourPlan(
    make_plan(("cpu", 1, 4), ("v100", 2, 2), usd=87.7, throughput=18_200.0), -12.3, {"v100": -1}, (), False
)
ABOVE = NeighbourPlan(
    make_plan(("cpu", 3, 9), usd=101.0, throughput=21_000.0),
    1.0,
    {"cpu": 5, "v100": -3},
    (LayerMove(1, 2, "v100", "cpu"),),
    True,
)


def told(*sensitivities: Sensitivity, optimal_usd: float = 100.0) -> Explanation:
    return Explanation(STATIONS, STATIONS[0], BELOW, ABOVE, optimal_usd, sensitivities)


def show(explanation: Explanation, width: int = 80) -> str:
    console = recording_console(width)
    show_explanation(console, explanation, PLAN, PROFILE, 19_000.0)
    return text_of(console)


def test_neighbours_are_told_by_what_they_change() -> None:
    below = "1 v100 less: 12.30 USD (12.3%) less, 18,200 samples/s (fewer than asked)."
    assert cheaper_words(BELOW, PLAN, PROFILE) == below
    above = "5 cpu more, 3 v100 less, layer1..layer2 from v100 to cpu: 1.00 USD (1.0%) more, 21,000 samples/s."
    assert faster_words(ABOVE, PLAN, PROFILE) == above


def test_missing_neighbours_are_told_as_the_ends_they_are() -> None:
    assert "no plan costs less" in cheaper_words(None, PLAN, PROFILE)
    assert "no plan within the limits is faster" in faster_words(None, PLAN, PROFILE)


def test_of_many_moves_the_first_are_told() -> None:
    moves = tuple(LayerMove(i % 3, i % 3, "v100", "cpu") for i in range(9))
    words = faster_words(NeighbourPlan(ABOVE.plan, 1.0, {}, moves, True), PLAN, PROFILE)
    assert words.count("from v100 to cpu") == 6
    assert "3 more moves of layers" in words


def test_a_cheaper_plan_for_the_same_floor_is_told_with_its_method() -> None:
    better = NeighbourPlan(BELOW.plan, -12.3, {"v100": -1}, (), True)
    assert "for the throughput asked, by method exact" in cheaper_words(better, PLAN, PROFILE)
    text = show(Explanation(STATIONS, STATIONS[0], better, ABOVE, 87.7, ()))
    assert text.startswith("\nBeaten by: 1 v100 less: 12.30 USD (12.3%) less")
    assert "Next cheaper" not in text


def test_the_stations_are_told_with_their_sides_and_the_bottleneck() -> None:
    text = show(told())
    assert "layer0   cpu×4    10 ms          20 ms  100.0%" in text
    assert "servers  cpu×2    15 ms              -   75.0%" in text
    assert "Bottleneck: layer0 on cpu (communication)." in text


def test_what_matters_has_a_row_and_what_does_not_is_named_below() -> None:
    text = show(
        told(
            Sensitivity("price", "cpu", 0.04, 0.044, 1.5, False),
            Sensitivity("price", "cpu", 0.04, 0.036, -2.5, True),
            Sensitivity("price", "v100", 2.42, 2.662, 0.0, False),
            Sensitivity("price", "v100", 2.42, 2.178, 0.0, False),
            Sensitivity("limit", "cpu", 480, 481, 0.0, False),
            Sensitivity("limit", "cpu", 480, 479, 0.0, False),
            Sensitivity("limit", "v100", 3, 4, -0.5, True),
            Sensitivity("limit", "v100", 3, 2, None, True),
            Sensitivity("floor", "", 19_000.0, 20_900.0, 7.0, True),
            Sensitivity("floor", "", 19_000.0, 17_100.0, 0.0, False),
        )
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "price of cpu, 0.04 USD/h +1.50 USD, same plan -2.50 USD, new plan" in lines
    assert "limit of v100, 3 -0.50 USD, new plan no plan" in lines
    assert "floor, 19,000 samples/s +7.00 USD, new plan no change" in lines
    assert "Limits that do not bind: cpu (480)." in lines
    assert "Prices that do not matter, 10% higher or lower: v100." in lines
    assert "What the cost of 100.00 USD hangs on" in lines


def test_of_a_plan_that_is_not_the_cheapest_the_cheapest_ones_cost_is_told() -> None:
    assert "What the cheapest plan's cost of 90.00 USD hangs on" in show(told(optimal_usd=90.0))
