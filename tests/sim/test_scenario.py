from __future__ import annotations

from pathlib import Path

import pytest

from heterps.errors import ConfigError
from heterps.sim import Scenario, load_scenario
from heterps.sim.speeds import Speed

FULL = """
workers: [2x1.0, 2.3]
jitter: 0.1
slowdowns: [{worker: w1, from_s: 100, to_s: 160, factor: 5}]
deaths: [{worker: w2, at_s: 400, noticed_s: 10}]
joins: [{at_s: 500, workers: 2x0.5}]
server_s: 0.01
latency_s: 0.002
horizon_s: 1000
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return path


def test_a_file_names_workers_by_their_place(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path, FULL))
    assert scenario.seconds == {"w0": 1.0, "w1": 1.0, "w2": 2.3, "w3": 0.5, "w4": 0.5}
    assert scenario.joins_at == {"w0": 0, "w1": 0, "w2": 0, "w3": 500, "w4": 500}
    assert Scenario.model_validate(scenario.model_dump()) == scenario


def test_the_scenario_of_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/choose-a-policy.md").read_text(encoding="utf-8")
    scenario = load_scenario(write(tmp_path, page.partition("```yaml\n")[2].partition("```")[0]))
    assert len(scenario.seconds) == 10


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("1.0,2.3", (1.0, 2.3)), ("3x.5, 1e-1", (0.5, 0.5, 0.5, 0.1)), ([1, "2X2"], None), (["2 x 2", 1], (2.0, 2.0, 1.0)),
     (1.5, (1.5,)), ("2×3", (3.0, 3.0)), ("2*3", (3.0, 3.0))],
)  # fmt: skip
def test_workers_may_be_written_in_short(given: object, seconds: tuple[float, ...] | None) -> None:
    if seconds is None:
        with pytest.raises(ConfigError, match="is not"):
            Scenario(workers=given, horizon_s=1.0)
    else:
        assert Scenario(workers=given, horizon_s=1.0).workers == seconds


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("2x1.0", "2y1.0", r"scenario.yaml:2: workers: .*'2y1.0' is not"),
        ("2x1.0", "0x1.0", "must be 1 to 100,000 workers"),
        ("2x1.0", "200000x1.0", "must be 1 to 100,000 workers"),
        ("2x1.0", "-1", "workers.0: must be greater than 0"),
        ("2x1.0", "1.2.3", "'1.2.3' is not"),
        ("[2x1.0, 2.3]", "[]", "workers: must not be empty"),
        ("0.1", "-0.1", "jitter: must be at least 0"),
        ("to_s: 160", "to_s: 90", r"to_s \(90\) must come after from_s \(100\)"),
        ("worker: w1", "worker: w9", "there is no worker 'w9': they are w0 to w4"),
        ("worker: w2, at_s: 400", "worker: w3, at_s: 400", "w3 dies at 400 s and joins at 500 s"),
        ("deaths: [", "deaths: [{worker: w2, at_s: 1}, ", "w2 dies twice"),
        ("horizon_s: 1000", "", "say how long: horizon_s"),
        ("factor", "factr", "factr"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_scenario(write(tmp_path, FULL.replace(old, new, 1)))


def finish(start: float, *slowdowns: tuple[float, float, float]) -> float:
    slow = [{"worker": "w0", "from_s": a, "to_s": b, "factor": factor} for a, b, factor in slowdowns]
    scenario = Scenario(workers="2x4.0", horizon_s=1.0, slowdowns=slow)
    return Speed("w0", 4.0, scenario).finish(start)


@pytest.mark.parametrize(
    ("start", "slowdowns", "end"),
    [
        (0.0, [], 4.0),
        (0.0, [(10, 20, 5.0)], 4.0),
        (6.0, [(10, 20, 5.0)], 10.0),
        (20.0, [(10, 20, 5.0)], 24.0),
        (8.0, [(10, 20, 5.0)], 20.0),  # 2 s before, 2 s of work in the 10 s of the slow-down
        (8.0, [(10, 15, 5.0)], 16.0),  # 2 s before, 1 s in it, 1 s after
        (12.0, [(10, 15, 3.0)], 18.0),  # 1 s in it, 3 s after
        (0.0, [(0, 10, 2.0), (2, 4, 2.0)], 9.0),  # 1 s by 2, 0.5 s by 4 (four times slower), 2.5 s by 9
        (0.0, [(1, 3, 0.5)], 2.5),  # 1 s, then twice as fast
    ],
)
def test_an_iteration_makes_headway_by_what_the_time_allows(
    start: float, slowdowns: list[tuple[float, float, float]], end: float
) -> None:
    assert finish(start, *slowdowns) == pytest.approx(end)
