"""The examples run as they are, in a small version: each script and job file through the real command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import preloaded
import pytest
from command import heterps

from heterps.checkpoint import load_latest
from heterps.data.generate import generate

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DEADLINE_S = 240


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty working directory beside the examples, as a checkout is before its first command."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    return tmp_path


def script(name: str, *words: object, place: Path) -> str:
    done = preloaded.run([sys.executable, f"examples/{name}.py", *words], cwd=place, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def test_the_demo_goes_from_data_to_predictions(place: Path) -> None:
    out = script("demo", 16_000, place=place)
    end = summary(place / "runs/ctr-1")
    assert f"16,000 samples here to a test AUC of {end['auc']:.4f}" in " ".join(out.replace("│", " ").split())
    for number, title in enumerate(("Data", "Profile", "Plan", "Train", "Predict"), 1):
        assert f"{number}. {title}" in out


def test_a_model_class_of_ones_own_learns(place: Path) -> None:
    out = script("own_model", 16_000, place=place)
    end = summary(place / "runs/wide-and-deep-1")
    assert 0.65 < end["auc"] < end["teacher_auc"]
    assert f"test AUC {end['auc']:.4f}" in out
    assert "first scores of the test set: [" in out


def test_two_towers_are_served_and_find_items(place: Path) -> None:
    out = script("two_towers", 8000, place=place)
    assert summary(place / "runs/match-1")["auc"] > 0.6
    answer = json.loads(out.partition("served: ")[2].splitlines()[0])
    assert -1 <= answer["rows"][0]["score"] <= 1
    nearest = json.loads(out.rpartition(": ")[2])
    assert len(set(nearest)) == 5


@pytest.mark.parametrize("name", ["din", "bst"])
def test_models_of_sequences_train(place: Path, name: str) -> None:
    generate(place / "data/history", 8000, 2000, task="history")
    done = heterps("train", f"examples/{name}.yaml", "--run", "run", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout)
    assert (end["status"], end["samples"]) == ("completed", 8000)
    assert end["auc"] > 0.5


def test_images_are_learned_by_dssp(place: Path) -> None:
    assert heterps("data", "images", "digits", "data/digits", cwd=place).returncode == 0
    short = (EXAMPLES / "digits_dssp.yaml").read_text().replace("epochs: 20", "epochs: 6").replace("30820", "9246")
    (place / "job.yaml").write_text(short)
    done = heterps("train", "job.yaml", "--run", "run", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout)
    assert end["accuracy"] > 0.85
    last = json.loads((place / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["stages"][0]["workers"] == 2
    assert last["staleness"] > 0, "workers did not wait for each other"


def test_a_plan_for_two_kinds_of_machines_is_emulated(place: Path) -> None:
    out = script("emulated", 2048, place=place)
    plan = json.loads((place / "plan.json").read_text())
    assert {stage["resource"] for stage in plan["stages"]} == {"cpu", "v100"}
    assert "EMULATED: seconds, samples/s and USD are those of the units" in out
    end = summary(place / "runs/emulated-1")
    assert (end["status"], end["samples"]) == ("completed", 2048)


def test_a_job_trains_on_a_ray_cluster_of_two_nodes(place: Path) -> None:
    pytest.importorskip("ray")
    script("ray_cluster", 4000, place=place)
    end = summary(place / "runs/emulated-1")
    assert (end["status"], end["samples"], end["stages"][0]["workers"]) == ("completed", 4000, 2)


def test_a_folder_that_grows_is_evaluated_then_trained_on_once_also_after_a_kill(place: Path) -> None:
    generate(place / "all", 300_000, 1000)  # files of 131,072 rows
    first, second, third = sorted((place / "all/train").iterdir())
    (place / "stream").mkdir()
    first.rename(place / "stream" / first.name)
    assert script("online", "stream", "run", place=place) == '{"file": "part-00000.parquet"}\n'
    second.rename(place / "stream" / second.name)
    words = [sys.executable, "examples/online.py", "stream", "run", "--wait", "0.1"]
    process = preloaded.Popen(words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while load_latest(place / "run/checkpoints").samples <= 131_072:  # the first checkpoint within the second file
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    third.rename(place / "stream" / third.name)
    told = script("online", "stream", "run", place=place).splitlines()
    assert [json.loads(line)["file"] for line in told] == [third.name], "the second was begun before"
    lines = [json.loads(line) for line in (place / "run.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == [first.name, second.name, third.name]
    assert lines[2]["log_loss"] < lines[1]["log_loss"], "what it learned of the second serves it on the third"
    end = summary(place / "run")
    assert (end["status"], end["samples"], end["restarts"]) == ("completed", 300_000, 3)
