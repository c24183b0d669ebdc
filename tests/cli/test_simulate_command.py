from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulate_command import figures, run

from heterps.sync import replay

TWO = ("--workers", "1.0,2.3", "--horizon", "1000")
SCENARIO = """
workers: [4x1.0, 1.5]
jitter: 0.1
slowdowns: [{worker: w1, from_s: 10, to_s: 20, factor: 5}]
deaths: [{worker: w2, at_s: 25}]
joins: [{at_s: 30, workers: 2x1.0}]
server_s: 0.02
latency_s: 0.01
horizon_s: 60
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return str(path)


def test_json_is_one_object_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    shown = figures(capsys, *TWO, "--mode", "dssp", "--lower", "3", "--spread", "12", "--seed", "0")
    assert shown["pushes"] == 884
    assert [worker["pushes"] for worker in shown["workers"]] == [450, 434]
    assert [worker["waits"] for worker in shown["workers"]] == [426, 0]
    assert [worker["wait_s"] for worker in shown["workers"]] == pytest.approx([550.0, 0.0], abs=0.1)
    assert shown["max_lead"] == 15
    assert shown["mean_staleness"] == pytest.approx(0.518, abs=2e-3)
    assert shown["policy"] == "dssp:3:12"
    assert sum(shown["staleness"].values()) == 884


@pytest.mark.parametrize(
    ("words", "pushes"),
    [
        (("--mode", "bsp"), 869),
        (("--mode", "asp"), 1434),
        (("--mode", "ssp", "--lower", "3"), 872),
        (("--mode", "ssp:15"), 884),
        (("--mode", "dssp:3:0"), 872),
        (("--mode", "dssp", "--literal"), 1434),
        ((), 884),
        (("--grant", "fastest", "--release", "lower"), 879),
    ],
)
def test_every_mode(words: tuple[str, ...], pushes: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures(capsys, *TWO, *words)["pushes"] == pushes


def test_options_of_the_policy_reach_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--predictor", "elapsed", "--release", "lower", "--hysteresis", "2", "--lower", "4", "--spread", "5")
    assert figures(capsys, *TWO, *words)["policy"] == "dssp:4:5+elapsed+lower+hysteresis:2"
    assert figures(capsys, *TWO, "--mode", "bsp", "--backup", "1")["policy"] == "bsp+backup:1"


def test_an_option_that_the_mode_does_not_have_is_noted_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *TWO, "--mode", "bsp", "--lower", "3", "--spread", "12", "--json")
    assert code == 0
    assert json.loads(out)["pushes"] == 869
    assert err == "note: bsp has no --lower and no --spread: not used\n"


def test_jitter_follows_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*TWO, "--jitter", "0.1", "--seed")
    assert figures(capsys, *words, "5") == figures(capsys, *words, "5")
    assert figures(capsys, *words, "5")["workers"] != figures(capsys, *words, "6")["workers"]


def test_policies_are_compared_in_the_order_given(capsys: pytest.CaptureFixture[str]) -> None:
    shown = figures(capsys, *TWO, "--compare", "bsp,asp,ssp:3,dssp:3:12")
    assert [(result["policy"], result["pushes"]) for result in shown["policies"]] == [
        ("bsp", 869), ("asp", 1434), ("ssp:3", 872), ("dssp:3:12", 884),
    ]  # fmt: skip
    code, out, _ = run(capsys, *TWO, "--compare", "bsp,asp")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [["bsp", "869"], ["asp", "1,434"]]


def test_a_scenario_is_played_and_options_go_before_it(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = figures(capsys, "--scenario", scenario, "--mode", "ssp:2")
    assert [worker["name"] for worker in shown["workers"]] == [f"w{i}" for i in range(7)]
    assert shown["workers"][2]["left_s"] == 25
    assert shown["workers"][5]["joined_s"] == 30
    assert shown["end_s"] == 60
    assert figures(capsys, "--scenario", scenario, "--horizon", "20")["end_s"] == 20
    assert len(figures(capsys, "--scenario", scenario, "--workers", "9x1.0", "--horizon", "20")["workers"]) == 9


def test_the_terminal_shows_workers_timeline_and_outcome(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--scenario", scenario, "--window", "20:40")
    assert code == 0
    assert "w6  " in out
    assert "20 s" in out
    assert "40 s" in out
    assert "█ computes" in out
    assert "×" in out
    assert "ahead of the slowest" in " ".join(out.split())


def test_files_are_written_beside_the_json(tmp_path: Path, scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    svg, html, trace = (tmp_path / name for name in ("t.svg", "p.html", "t.jsonl"))
    words = ("--svg", str(svg), "--html", str(html), "--trace", str(trace))
    shown = figures(capsys, "--scenario", scenario, "--mode", "dssp", *words)
    assert svg.read_text().startswith("<svg")
    assert f"<strong>{shown['pushes']:,}</strong>" in html.read_text()
    policy = replay(trace)
    assert sum(json.loads(line).get("event") == "pushed" for line in trace.read_text().splitlines()) == shown["pushes"]
    assert policy.config.label == "dssp:3:12"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "say who works: --workers"),
        (("--workers", "1.0"), "say how long: --horizon"),
        (("--workers", "1.0,x", "--horizon", "9"), "'x' is not"),
        (("--workers", "", "--horizon", "9"), "'' is not"),
        (("--workers", "0,1", "--horizon", "9"), "--workers: must be greater than 0"),
        (("--workers", "nan", "--horizon", "9"), "'nan' is not"),
        (("--workers", "1", "--horizon", "-9"), "--horizon: must be greater than 0"),
        (("--workers", "1", "--horizon", "inf"), "--horizon: must be a finite number"),
        (("--workers", "1", "--iterations", "0"), "--iterations: must be greater than 0"),
        ((*TWO, "--jitter", "-1"), "--jitter: must be at least 0"),
        ((*TWO, "--seed", "-1"), "--seed: must be at least 0"),
        ((*TWO, "--seed", "one"), "--seed"),
        ((*TWO, "--mode", "bulk"), "there is no policy 'bulk' among bsp, asp, ssp, dssp"),
        ((*TWO, "--lower", "-1"), "lower: must be at least 0"),
        ((*TWO, "--predictor", "oracle"), "predictor: must be 'last', 'ema' or 'elapsed'"),
        ((*TWO, "--mode", "bsp", "--backup", "2"), "at most 1 backup workers"),
        ((*TWO, "--compare", "bsp,foo"), "there is no policy 'foo'"),
        ((*TWO, "--compare", "bsp,bsp"), "bsp is there twice"),
        ((*TWO, "--compare", "bsp", "--lower", "3"), "--lower: with --compare"),
        ((*TWO, "--compare", "bsp", "--svg", "t.svg"), "--svg and --trace are of one policy"),
        ((*TWO, "--window", "5"), "--window 5: write from and to"),
        ((*TWO, "--window", "5:5"), "end after it begins"),
        ((*TWO, "--window", "0:inf"), "end after it begins"),
        ((*TWO, "--window", "2000:3000"), "the simulation ends at 1000 s"),
        (("--scenario", "none.yaml"), "there is no such scenario"),
    ],
)
def test_wrong_input_is_told(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert says in " ".join(err.split())


def test_mistakes_in_a_scenario_name_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO.replace("factor: 5", "factor: 0"))
    code, _, err = run(capsys, "--scenario", str(path))
    assert code == 2
    assert "scenario.yaml:4: slowdowns.0.factor: must be greater than 0" in err
    path.write_text("data: {train: x}\n")
    assert "this is a job file, and a scenario is wanted here" in run(capsys, "--scenario", str(path))[2]


@pytest.mark.parametrize("option", ["--svg", "--html", "--trace"])
def test_a_place_that_cannot_be_written_is_told_before_anything_runs(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *TWO, option, str(tmp_path / "none" / "file"))
    assert (code, out) == (7, "")
    assert "there is no folder" in err


@pytest.fixture
def a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A folder with the trace of four workers that are slow in turn, in SSP."""
    (tmp_path / "run" / "traces").mkdir(parents=True)
    slow = [f"{{worker: w{i % 4}, from_s: {50 * i}, to_s: {50 * i + 20}, factor: 5}}" for i in range(8)]
    (tmp_path / "turns.yaml").write_text(
        f"workers: [4x1.0]\njitter: 0.1\nslowdowns: [{', '.join(slow)}]\nhorizon_s: 400"
    )
    words = ("--mode", "ssp:1", "--trace", str(tmp_path / "run/traces/stage-1.jsonl"))
    assert run(capsys, "--scenario", str(tmp_path / "turns.yaml"), *words)[0] == 0
    return str(tmp_path / "run")


def test_workers_of_a_run_are_played(a_run: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = figures(capsys, "--from", a_run, "--compare", "bsp,ssp:1,asp")
    bsp, ssp, asp = (policy["pushes"] for policy in shown["policies"])
    assert bsp < ssp < asp
    assert len(shown["policies"][0]["workers"]) == 4
    assert figures(capsys, "--from", a_run, "--mode", "asp", "--horizon", "50")["end_s"] == 50


def test_advice_for_the_workers_of_a_run_names_policy_lanes_bounds_and_gain(
    a_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = figures(capsys, "--from", a_run, "--advise", "--seeds", "3")
    rows = {row["policy"]: row for row in shown["policies"]}
    assert list(rows) == ["ssp:1", "bsp", "ssp:3", "dssp:3:12", "ssp:15", "asp"]
    assert (shown["own"], shown["lanes"]) == ("ssp:1", 4)
    best = rows[shown["advised"]]
    assert best["gain"] == sorted(best["gains"])[1] > 1.05
    assert rows["ssp:1"]["gains"] == [1, 1, 1]
    assert f"Take {shown['advised']} with 4 lanes" in shown["advice"][0]
    code, out, _ = run(capsys, "--from", a_run, "--advise", "--compare", "bsp,asp")
    assert code == 0
    assert "asp ✓ " in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from", ".", "--workers", "1.0"), "--workers: --from . says how long iterations take"),
        (("--from", ".", "--jitter", "0.1"), "--jitter: --from ."),
        (("--from", "nowhere", "--advise"), "nowhere: there is no trace of its policy"),
        (("--from", "nowhere", "--advise", "--target", "0.9"), "--target: only with --job"),
        (("--from", "RUN", "--advise", "--mode", "asp"), "--mode: not with --advise"),
        (("--from", "RUN", "--seeds", "3"), "--seeds: only with --job"),
        (("--from", "RUN", "--advise", "--compare", "bsp+fitted,asp+damped"), "asp+damped is about what is learned"),
    ],
)
def test_wrong_words_with_a_run_are_refused(
    words: tuple[str, ...], says: str, a_run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *(a_run if word == "RUN" else word for word in words))
    assert code == (6 if "no trace" in says else 2)
    assert says in " ".join(err.split())
