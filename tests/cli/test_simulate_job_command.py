"""`heterps simulate --job`: real training on the simulated clock, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import heterps_here
from simulate_command import figures, run

from heterps.config import load_job
from heterps.data.reader import open_reader

TWO = ("--workers", "1.0,2.3", "--points", "4", "--processes", "1")


def test_json_has_a_row_a_policy_a_run_a_seed_and_is_repeatable(
    tiny_job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--job", str(tiny_job), *TWO, "--compare", "bsp,asp+damped", "--seeds", "2", "--target", "0.6")
    shown = figures(capsys, *words)
    assert shown["target"] == 0.6
    assert shown["measure"] == "AUC"
    assert [row["label"] for row in shown["policies"]] == ["bsp", "asp+damped"]
    assert [(one["policy"], one["seed"]) for one in shown["runs"]] == [
        ("bsp", 0), ("bsp", 1), ("asp+damped", 0), ("asp+damped", 1),
    ]  # fmt: skip
    assert shown["soonest"] in ("bsp", "asp+damped", None)
    assert shown["runs"][0]["points"][-1]["samples"] == 200
    assert "advice" not in shown
    assert figures(capsys, *words) == shown
    assert figures(capsys, *words, "--seed", "3")["runs"][0]["points"] != shown["runs"][0]["points"]


def test_the_seed_is_the_jobs_unless_it_is_given(tiny_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_job.write_text(tiny_job.read_text() + "seed: 5\n")
    words = ("--job", str(tiny_job), *TWO, "--compare", "asp")
    assert figures(capsys, *words)["runs"][0]["seed"] == 5
    assert figures(capsys, *words, "--seed", "2")["runs"][0]["seed"] == 2


def test_advice_compares_what_is_worth_it_when_nobody_says(tiny_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tiny_job.parent / "page.html"
    code, out, _ = run(capsys, "--job", str(tiny_job), *TWO, "--epochs", "2", "--advise", "--html", str(page))
    assert code == 0
    for policy in ("bsp", "asp", "ssp:3", "dssp:3:12", "bsp+fitted"):
        assert f"\n{policy} " in out
    assert "Take " in out
    assert "policy simulator" not in out
    assert "5 policies compared" in page.read_text()


def test_rows_that_no_real_run_can_have_are_said_to_be_played_otherwise(
    tiny_job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tiny_job.parent / "page.html"
    words = ("--job", str(tiny_job), *TWO, "--compare", "asp,asp+damped", "--html", str(page))
    why = "Played by the policy simulator and not as whole jobs, because `heterps train` cannot run asp+damped."
    assert why in " ".join(run(capsys, *words)[1].split())
    assert figures(capsys, *words)["notes"] == [why]
    assert "not as whole jobs" in page.read_text()
    assert figures(capsys, "--job", str(tiny_job), *TWO, "--compare", "asp,bsp")["notes"] == []


def test_bsp_takes_as_long_as_one_worker_that_is_as_fast_as_all(
    tiny_job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--job", str(tiny_job), "--compare", "bsp", "--points", "3", "--processes", "1", "--workers")
    one, four = (figures(capsys, *words, workers)["runs"][0]["points"] for workers in ("0.5", "4x2.0"))
    assert [point["now_s"] for point in four] == pytest.approx([point["now_s"] for point in one])
    assert [point["loss"] for point in four] == pytest.approx([point["loss"] for point in one], rel=1e-5)


def test_a_scenario_file_needs_no_end_and_its_horizon_counts(
    tiny_job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_job.parent / "scenario.yaml"
    path.write_text("workers: [3x1.0]\njitter: 0.1\nseed: 4\n")
    words = ("--job", str(tiny_job), "--scenario", str(path), "--compare", "ssp:1", "--points", "3", "--epochs", "2")
    whole = figures(capsys, *words)["runs"][0]
    assert whole["seed"] == 4
    assert whole["points"][-1]["samples"] == 400
    cut = figures(capsys, *words, "--horizon", "3.5")["runs"][0]
    assert cut["points"][-1]["now_s"] <= 3.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workers", "1.0", "--horizon", "9", "--target", "0.9", "--advise"), "--target, --advise: only with --job"),
        (("--job", "job.yaml", "--workers", "1.0", "--mode", "asp"), "--mode: not with --job"),
        (("--job", "job.yaml", "--workers", "1.0", "--lower", "3", "--svg", "a.svg"), "--lower, --svg: not with --job"),
        (("--job", "job.yaml"), "say who works"),
        (
            ("--job", "job.yaml", "--workers", "1.0", "--target", "95"),
            "--target 95: AUC, accuracy and R²",
        ),
        (("--job", "none.yaml", "--workers", "1.0"), "none.yaml"),
        (("--job", "job.yaml", "--workers", "1.0", "--compare", "asp+fitted"), "are for bsp"),
        (("--job", "job.yaml", "--workers", "1.0", "--compare", "asp,asp"), "asp is there twice"),
        (("--job", "job.yaml", "--workers", "1,2", "--compare", "bsp+backup:2"), "at most 1 backup workers"),
        (("--job", "job.yaml", "--workers", "1.0", "--html", "no/such/folder.html"), "there is no folder"),
        (("--workers", "1.0", "--horizon", "9", "--compare", "asp+damped"), "with --job"),
    ],
)
def test_wrong_words_are_refused_with_what_to_do(
    tiny_job: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, *words)
    assert code != 0
    assert out == ""
    assert said in " ".join(err.split())


def test_a_job_without_a_test_set_is_refused(tiny_job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_job.write_text(tiny_job.read_text().replace("  test: test.parquet\n", ""))
    code, _, err = run(capsys, "--job", str(tiny_job), *TWO)
    assert code != 0
    assert "data.test" in err


@pytest.mark.parametrize("option", ["--seeds", "--epochs", "--points", "--processes"])
def test_counts_below_one_are_refused(tiny_job: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    code, _, err = run(capsys, "--job", str(tiny_job), "--workers", "1.0", option, "0")
    assert code == 2
    assert option in err


@pytest.mark.parametrize("policy", ["asp", "ssp:3", "dssp:1:2"])
def test_a_worker_of_a_simulation_has_one_batch_under_way_as_a_worker_of_train(
    tiny_job: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    shown = figures(capsys, "--job", str(tiny_job), *TWO, "--compare", policy)
    last = shown["runs"][0]["points"][-1]
    tiny_job.write_text(tiny_job.read_text() + "workers: {channel: memory}\n")
    words = ("--launcher", "local", "--workers", 2, "--sync", policy, "--run", "run", "--json")
    trained = heterps_here("train", tiny_job.name, *words, cwd=tiny_job.parent)
    assert trained.returncode == 0, trained.stderr
    summary = json.loads(trained.stdout)
    assert last["samples"] == summary["samples"]
    assert last["updates"] == len(list(open_reader(load_job(tiny_job)).read())), "every batch is one worker's update"
    assert shown["policies"][0]["staleness"] <= 1, "one other worker pushes while a batch is computed"
    assert summary["staleness"] <= 1
