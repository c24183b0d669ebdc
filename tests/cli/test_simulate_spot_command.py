"""`heterps simulate --spot`: a plan of `heterps plan` over traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulate_command import run
from test_plan_command import PROFILE
from test_plan_command import run as plan

CLUSTER = """
resources:
  cpu:  {device: cpu,  usd_per_hour: 0.04, limit: 12, port_gbps: 10}
  v100: {device: cuda, usd_per_hour: 3.06, limit: 3, startup_s: 180,
         spot: {usd_per_hour: 0.92, limit: 4, interruptions_per_hour: 0.05}}
server_resource: cpu
"""


@pytest.fixture
def files(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    Path("profile.json").write_text(json.dumps(PROFILE))
    Path("cluster.yaml").write_text(CLUSTER)
    asked = ("--throughput", "20000", "--samples", "1e9", "--epochs", "2", "--out", "plan.json")
    assert plan(capsys, "profile.json", "cluster.yaml", *asked, "--json")[0] == 0
    return "--plan", "plan.json", "--cluster", "cluster.yaml"


def test_generated_traces_are_played_for_each_seed(files: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    def found(*words: str) -> Any:
        code, out, err = run(capsys, "--spot", "independent", *files, *words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    ten, all_samples = found("--seeds", "10"), json.loads(Path("plan.json").read_text())
    assert all_samples["samples"] == 2e9
    assert len(ten["runs"]) == 10
    assert ten["predicted"] == {"hours": all_samples["hours"], "usd": all_samples["usd"]}
    assert ten["low"]["usd"] <= ten["mean"]["usd"] <= ten["high"]["usd"]
    assert ten == found("--seeds", "10")
    assert ten["runs"][4] == found("--seeds", "1", "--seed", "4")["runs"][0]
    assert len(found()["runs"]) == 100


def test_a_trace_of_a_file_is_played_from_its_beginning_and_from_others(
    files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("trace.csv").write_text("time_s,resource,units\n0,v100,4\n600,v100,0\n1200,v100,4\n9e5,v100,4\n")
    once = json.loads(run(capsys, "--spot", "trace.csv", *files, "--json")[1])["runs"]
    assert [found["interruptions"] for found in once] == [1]
    assert once[0]["lost_s"] == 375
    several = json.loads(run(capsys, "--spot", "trace.csv", *files, "--seeds", "5", "--json")[1])["runs"]
    assert several[0] == once[0]
    assert [found["interruptions"] for found in several[1:]] == [0, 0, 0, 0], "they begin later"


def test_the_table_fits_into_80_columns(files: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--spot", "generated", *files, "--seeds", "20")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.splitlines()[0].split() == ["predicted", "mean", "5", "%", "95", "%"]
    assert "Over 20 traces the plan costs" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--spot", "generated"), "add --plan PLAN and --cluster CLUSTER"),
        (("--plan", "plan.json"), "only with --spot TRACE"),
        (
            ("--spot", "gone.csv", "--plan", "plan.json", "--cluster", "cluster.yaml"),
            "gone.csv: there is no such trace",
        ),
        (
            ("--spot", "generated", "--plan", "cluster.yaml", "--cluster", "cluster.yaml"),
            "this is a cluster file, and a plan is wanted",
        ),
        (("--spot", "generated", "--workers", "1.0", "--mode", "bsp"), "--workers, --mode: not with --spot"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: tuple[str, ...], said: str, files: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2
    assert said in err
