from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps.cli import main
from heterps.errors import ConfigError
from heterps.planning.plan import load_plan
from heterps.planning.provisioners import PROVISIONERS
from heterps.planning.schedulers import METHODS
from heterps.profiling.profile import load_profile

PROFILE = {
    "version": 1, "model": "ctr_dnn", "batch_size": 4096,
    "layers": [
        {"name": "embedding", "kind": "embedding", "server_s": 0.004,
         "costs": {"cpu": {"compute_s": 0.012, "sync_s": 0.020, "input_s": 0.003, "alpha": 0.97, "beta": 0.93},
                   "v100": {"compute_s": 0.010, "sync_s": 0.110, "input_s": 0.004, "alpha": 0.90, "beta": 0.80,
                            "estimated": True}}},
        {"name": "fc1", "kind": "linear", "server_s": 0.001,
         "costs": {"cpu": {"compute_s": 2.0, "sync_s": 0.002, "input_s": 0.003, "alpha": 0.97, "beta": 0.93},
                   "v100": {"compute_s": 0.010, "sync_s": 0.002, "input_s": 0.004, "alpha": 0.90, "beta": 0.80,
                            "estimated": True}}},
    ],
}  # fmt: skip
CLUSTER = """
resources:
  cpu:  {device: cpu,  usd_per_hour: 0.04, limit: 480}
  v100: {device: cuda, usd_per_hour: 2.42, limit: 32}
server_resource: cpu
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return [str(tmp_path / "profile.json"), str(tmp_path / "cluster.yaml")]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["plan", *words])
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


ASKED = ("--throughput", "20000", "--samples", "1000000000")


def test_what_trials_reached_counts_where_it_was_measured(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(told: dict[str, object], *words: str) -> dict[str, Any]:
        (tmp_path / "profile.json").write_text(json.dumps(PROFILE | {"version": 2} | told))
        code, out, _ = run(capsys, *files, "--samples", "1e9", *words, "--json")
        assert code == 0
        made: dict[str, Any] = json.loads(out)
        return made

    reached, floor = {"reached": 0.8}, ("--throughput", "20000")
    faster, counted = found({}, "--throughput", "25000"), found(reached, *floor)
    assert counted["stages"] == faster["stages"]
    assert counted["throughput"] == pytest.approx(0.8 * faster["throughput"])
    assert (counted["hours"], counted["usd"]) == pytest.approx((faster["hours"] / 0.8, faster["usd"] / 0.8))
    plain = found({}, *floor)
    assert found(reached, *floor, "--cost", "paper")["usd"] == plain["usd"]
    for_bsp = found({}, *floor, "--sync", "bsp")
    assert found(reached, *floor, "--sync", "bsp")["usd"] == for_bsp["usd"], "trials did not wait as rounds do"
    known = found(reached | {"reached_for": "bsp"}, *floor, "--sync", "bsp")
    assert known["usd"] > for_bsp["usd"]
    assert known["throughput"] >= 20000
    assert found(reached | {"reached_for": "bsp"}, *floor)["usd"] == plain["usd"]
    _, out, _ = run(capsys, *files, "--samples", "1e9", *floor)
    left_out = "Trials with bsp reached 80% of the throughput of their slowest stage; the figures leave that out, since"
    assert left_out in " ".join(out.split())
    found(reached, *floor)
    _, out, _ = run(capsys, *files, "--samples", "1e9", *floor, "--cost", "paper")
    assert "leave that out, since the paper's bill was asked for" in " ".join(out.split())
    found(reached | {"reached_for": "bsp"}, *floor)
    _, out, _ = run(capsys, *files, "--samples", "1e9", *floor, "--sync", "bsp")
    assert "the figures count on as much" in " ".join(out.split())


def test_json_is_one_object_of_the_contract(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *files, *ASKED, "--epochs", "1", "--method", "exact", "--seed", "0", "--json")
    plan = json.loads(out)
    assert code == 0
    assert list(plan) == [
        "method", "stages", "servers", "throughput", "hours", "usd", "bottleneck", "search_s", "evaluations",
        "optimal_usd", "gap", "provisioner", "batch_size", "samples", "model", "layers", "estimated",
    ]  # fmt: skip
    assert plan["stages"] == [
        {"first": 0, "last": 0, "resource": "cpu", "count": plan["stages"][0]["count"]},
        {"first": 1, "last": 1, "resource": "v100", "count": 1},
    ]
    assert plan["servers"]["resource"] == "cpu"
    assert plan["throughput"] >= 20000
    assert plan["gap"] == 0.0
    assert plan["usd"] == plan["optimal_usd"]
    assert plan["model"] == "ctr_dnn"
    assert plan["layers"] == ["embedding", "fc1"]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_plans_and_knows_its_gap(
    method: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *files, *ASKED, "--method", method, "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["method"] == method
    assert plan["gap"] == pytest.approx(plan["usd"] / plan["optimal_usd"] - 1, abs=1e-9)


@pytest.mark.parametrize(("method", "estimated"), [("exact", ["v100"]), ("cpu", None)])
def test_json_and_the_plan_file_name_the_resources_whose_costs_are_estimates(
    method: str, estimated: list[str] | None, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    _, out, _ = run(capsys, *files, *ASKED, "--method", method, "--json", "--out", str(path))
    assert json.loads(out).get("estimated") == json.loads(path.read_text()).get("estimated") == estimated


@pytest.mark.parametrize("provisioner", PROVISIONERS)
def test_every_provisioner_plans_and_is_named_in_the_plan(
    provisioner: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *files, *ASKED, "--provisioner", provisioner, "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["provisioner"] == provisioner
    assert plan["throughput"] >= 20000
    assert plan["gap"] >= 0.0


def test_a_small_batch_costs_more_where_communication_has_a_fixed_part(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    profile = load_profile(files[0])
    fixed = [
        layer.model_copy(
            update={
                "costs": {
                    name: cost.model_copy(update={"sync_fixed_s": cost.sync_s}) for name, cost in layer.costs.items()
                }
            }
        )
        for layer in profile.layers
    ]
    profile.model_copy(update={"layers": tuple(fixed)}).write(files[0])
    asked = ("--throughput", "2000", "--samples", "1e9", "--json")
    usd = [
        json.loads(run(capsys, *files, *asked, "--batch-size", str(size))[1])["usd"]
        for size in (profile.batch_size, profile.batch_size // 8)
    ]
    assert usd[0] < usd[1]


@pytest.mark.parametrize(("size", "told"), [("1024", True), ("4096", False)])
def test_a_batch_size_that_is_not_the_profiled_one_is_told(
    size: str, told: bool, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, *files, *ASKED, "--batch-size", size)
    assert ("For batches of 1,024 samples (profiled with 4,096)." in out) is told


def test_a_batch_of_no_samples_is_refused(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *files, *ASKED, "--batch-size", "0")
    assert code == 2
    assert "at least one sample" in err


def test_the_plan_file_holds_the_plan_that_was_printed(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, *files, *ASKED, "--json", "--out", str(tmp_path / "plan.json"))
    assert load_plan(tmp_path / "plan.json").model_dump(mode="json", exclude_none=True) == json.loads(out)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_ticks_the_chosen_method_and_fits(
    columns: int, files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(capsys, *files, *ASKED, "--method", "greedy")
    lines = [line.rstrip() for line in out.splitlines()]
    assert code == 0
    assert all(len(line) <= columns for line in lines)
    rows = {line[1:].split()[0]: line for line in lines[2:] if line[:1] in "✓ " and len(line.split()) > 4}
    assert rows["greedy"].startswith("✓")
    assert not rows["exact"].startswith("✓")
    assert "cpu×" in rows["exact"]
    assert "[embedding]" in rows["exact"]
    assert any("→ v100×1 [fc1]" in line for line in lines)
    assert any(line.startswith("  ") and "Bottleneck:" in line for line in lines)


def test_what_wraps_below_the_verdict_keeps_its_indent(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run(capsys, *files, *ASKED)
    below = out.partition("✓ exact:")[2].partition("Proven optimal")[2].partition("\n~")[0].splitlines()
    assert len(below) > 1
    assert all(line.startswith("  ") for line in below[1:])


def test_compare_shows_every_method_and_says_on_stderr_which_is_at_work(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = run(capsys, *files, *ASKED, "--compare", "--seconds", "0.2")
    assert code == 0
    assert all(f"searching by {method}\n" in err for method in METHODS)
    shown = {line[1:].split()[0] for line in out.splitlines() if line[3:4].isalpha()}
    assert shown >= set(METHODS)
    assert all(len(line.rstrip()) <= 100 for line in out.splitlines())


def test_compare_as_json_has_the_chosen_plan_and_the_search_of_every_method(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, *files, *ASKED, "--compare", "--evaluations", "2000", "--seconds", "1", "--json")
    shown = json.loads(out)
    assert list(shown) == ["chosen", "options"]
    assert [option["method"] for option in shown["options"]] == list(METHODS)
    exact = next(option for option in shown["options"] if option["method"] == "exact")
    assert exact["plan"] == shown["chosen"]
    for option in shown["options"]:
        assert option["plan"] is None or option["trace"][-1]["usd"] == pytest.approx(option["plan"]["usd"])
        assert option["plan"] is not None or option["reason"]


def test_explain_and_frontier_stand_beside_the_plan_in_json(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "f.svg"
    code, out, _ = run(capsys, *files, *ASKED, "--explain", "--frontier", "--plot", str(plot), "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["method"] == "exact"
    assert shown["explain"]["bottleneck"]["busy"] == 1
    assert {s["of"] for s in shown["explain"]["sensitivities"]} == {"price", "limit", "floor"}
    assert any(plan["usd"] == pytest.approx(shown["usd"]) for plan in shown["frontier"]["plans"])
    assert plot.read_text().startswith("<svg")


@pytest.mark.parametrize("columns", [80, 120])
def test_explain_and_frontier_fit(
    columns: int, files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(capsys, *files, *ASKED, "--explain", "--frontier")
    assert code == 0
    assert all(len(line.rstrip()) <= columns for line in out.splitlines())
    assert all(word in out for word in ("Next cheaper:", "Next faster:", "hangs on", "▲ 20,000 asked"))


def test_a_plan_is_explained_where_the_profile_knows_a_resource_that_the_cluster_lacks(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    without_v100 = "".join(line + "\n" for line in CLUSTER.splitlines() if "v100" not in line)
    Path(files[1]).write_text(without_v100)
    asked = ("--throughput", "2000", "--samples", "1e9", "--explain")
    code, out, err = run(capsys, *files, *asked, "--json")
    assert (code, err) == (0, "")
    limits = {found["name"] for found in json.loads(out)["explain"]["sensitivities"] if found["of"] == "limit"}
    assert limits == {"cpu"}
    code, out, _ = run(capsys, *files, *asked)
    assert code == 0
    assert "hangs on" in out


def test_figures_that_rest_on_estimates_are_marked_and_measured_ones_are_not(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, *files, *ASKED)
    lines = out.splitlines()
    assert all("~" in line for line in lines if line.startswith(("✓  exact", "   gpu")))
    assert not any("~" in line for line in lines if line.startswith("   cpu"))
    assert lines[-1].startswith("~ rests on estimated costs of v100")


def test_no_plan_leaves_with_3_and_says_on_stderr_what_would_help(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *files, "--throughput", "1e9", "--samples", "1", "--json")
    assert code == 3
    assert out == ""
    assert "embedding on" in err
    assert "highest throughput within the limits" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--throughput", "0", "--samples", "1"), "throughput must be a number above 0"),
        ((*ASKED, "--method", "exat"), f"Did you mean 'exact'? Methods: {', '.join(METHODS)}"),
        ((*ASKED, "--provisioner", "exat"), "Did you mean 'exact'? Provisioners: exact"),
        ((*ASKED, "--plot", "f.png"), "an .svg or an .html file"),
        (("--samples", "1"), "--throughput"),
        (("--throughput", "1"), "error: Missing option '--samples'."),
        ((*ASKED, "--trials", "3"), "error: --trials is for --measure."),
        ((*ASKED, "--profile-out", "p.json"), "error: --profile-out is for --measure."),
        ((*ASKED, "--measure", "job.yaml", "--compare"), "error: --compare is not for --measure."),
        ((*ASKED, "--measure", "job.yaml", "--batch-size", "8"), "error: --batch-size is not for --measure."),
        ((*ASKED, "--measure", "nowhere.yaml"), "nowhere.yaml: there is no such job file"),
        ((*ASKED, "--measure", "job.yaml", "--trials", "0"), "error: --trials 0: must be at least 1."),
        ((*ASKED, "--method", "rl", "--seed", "-1"), "error: --seed -1: must be at least 0."),
        (("--throughput", "20k", "--samples", "1"), "error: --throughput 20k: must be a number."),
        ((*ASKED, "--evaluations", "0"), "error: --evaluations 0: must be at least 1."),
    ],
)
def test_bad_options_leave_with_2(
    words: tuple[str, ...], message: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *files, *words)
    assert code == 2
    assert message in " ".join(err.split())


@pytest.mark.parametrize(("num_files", "missing"), [(0, "PROFILE"), (1, "CLUSTER")])
def test_without_measure_profile_and_cluster_must_be_given(
    num_files: int, missing: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *files[:num_files], *ASKED)
    assert code == 2
    assert f"error: Missing argument '{missing}'." in err


def test_swapped_files_are_recognised(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *files[::-1], *ASKED)
    assert code == 2
    assert err == (
        f"error: {files[1]}: this is a cluster file, and a profile is wanted here: "
        "`heterps plan PROFILE CLUSTER` takes it second.\n"
    )
    assert (
        f"{files[0]}: this is a profile, and a cluster file is wanted here"
        in run(capsys, files[0], *files[:1], *ASKED)[2]
    )


@pytest.mark.parametrize(("is_comparison", "found"), [(True, "a comparison of plans"), (False, "a profile")])
def test_what_is_no_plan_is_recognised_where_a_plan_is_wanted(
    is_comparison: bool, found: str, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_comparison:
        _, out, _ = run(capsys, *files, *ASKED, "--compare", "--evaluations", "9", "--seconds", "1", "--json")
        (tmp_path / "profile.json").write_text(out)
    with pytest.raises(ConfigError, match=f"this is {found}, and a plan is wanted here"):
        load_plan(tmp_path / "profile.json")


def test_a_missing_profile_is_named(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "nowhere.json", files[1], *ASKED)
    assert code == 2
    assert "nowhere.json: there is no such profile" in err


@pytest.mark.parametrize(("option", "what"), [("--out", "plan"), ("--plot", "plot")])
def test_a_place_that_cannot_be_written_to_leaves_with_7_before_the_search(
    option: str,
    what: str,
    files: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heterps.planning.plan", lambda *_, **__: pytest.fail("searched"))
    code, _, err = run(capsys, *files, *ASKED, "--json", option, str(tmp_path / "missing" / "f.html"))
    assert code == 7
    assert f"cannot write the {what}: there is no folder {tmp_path / 'missing'}." in err
