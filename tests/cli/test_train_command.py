"""`heterps train`: what it prints, its options and exit codes. Signals are in tests/end_to_end."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from heterps.cli import main
from heterps.report.terminal.training_progress import TrainingProgress


@pytest.fixture
def train(tiny_job, capsys):
    def train(*words):
        with pytest.raises(SystemExit) as end:
            main(["train", *map(str, words)])
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return train


def test_a_line_an_interval_and_the_checkpoint_are_shown_where_there_is_no_terminal(train, tmp_path):
    code, out, err = train("job.yaml", "--run", "mine")
    assert (code, err) == (0, "")
    assert " 64 samples " in out
    assert "200 samples " in out
    assert "checkpoint mine/checkpoints/0000000013" in out
    assert "evaluating 60 test samples" in out
    assert (tmp_path / "mine" / "summary.json").exists()


def test_json_is_all_that_goes_to_standard_output(train, tmp_path):
    code, out, err = train("job.yaml", "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "runs" / "tiny-1" / "summary.json").read_text())
    assert "200 samples " in err


def test_a_run_goes_on_with_resume(train):
    assert train("job.yaml")[0] == 0
    code, out, _ = train("job.yaml", "--resume")
    assert code == 0
    assert "resumed at 200 of 200 samples" in out


def test_a_plan_can_be_given_by_option_and_what_it_promises_is_shown(train, tmp_path):
    stages = [{"first": 0, "last": 4, "resource": "v100", "count": 3}]
    plan = {"method": "exact", "stages": stages, "servers": {"resource": "cpu", "count": 1}, "throughput": 1000.0}
    (tmp_path / "mine.json").write_text(json.dumps(plan | {"hours": 1.0, "usd": 7.3, "bottleneck": "servers on cpu"}))
    code, out, _ = train("job.yaml", "--plan", "mine.json")
    text = " ".join(out.split())
    assert code == 0
    assert "the inline launcher runs the one stage of the plan in this process; v100×3, cpu×1 are not rented" in text
    assert "The plan promises 1,000 samples/s and 7.30 USD for 3,600,000 samples on units that were not rented" in text
    assert json.loads((tmp_path / "runs" / "tiny-1" / "plan.json").read_text())["stages"] == stages
    assert "plan: mine.json" in (tmp_path / "runs" / "tiny-1" / "job.yaml").read_text()


def test_a_run_of_another_job_is_not_gone_on_with(train, tiny_job):
    assert train("job.yaml")[0] == 0
    tiny_job.write_text(tiny_job.read_text() + "seed: 5\n")
    code, _, err = train("job.yaml", "--resume")
    assert code == 6
    assert "runs/tiny-1 is a run of another job: seed differ" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_tells_the_signal(train, monkeypatch, number, code):
    monkeypatch.setattr(TrainingProgress, "measured", lambda *_: os.kill(os.getpid(), number))
    found, out, _ = train("job.yaml", "--json")
    assert found == code
    assert json.loads(out)["status"] == f"stopped by {number.name}"


def test_interrupting_twice_is_no_error_of_ours(train, monkeypatch):
    def twice(*_):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrainingProgress, "measured", twice)
    code, _, err = train("job.yaml")
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("none.yaml", 2, "none.yaml: there is no such job file"),
        ("job.yaml --launcher moon", 2, "--launcher: must be 'inline', 'local' or 'ray' (got 'moon')"),
        ("job.yaml --plan none.json", 2, "none.json: there is no such plan"),
        ("job.yaml --plan job.yaml", 2, "job.yaml"),
        ("job.yaml --resume", 6, "there is no run of 'tiny' in runs/ to resume"),
        ("job.yaml --run .", 6, "is there already and not empty"),
        ("job.yaml --run train.parquet/run", 7, "train.parquet/run: cannot be written"),
    ],
)
def test_errors_have_a_code_and_say_what_to_do(train, words, code, message):
    found, _, err = train(*words.split())
    assert found == code
    assert message in err.replace("\n", " ")
    assert "Traceback" not in err


def test_what_looks_like_markup_in_a_path_is_shown_as_it_is(train):
    assert "checkpoint [red]/checkpoints/" in train("job.yaml", "--run", "[red]")[1].replace("\n", "")


def test_help_shows_an_example(train):
    assert "heterps train examples/ctr.yaml" in train("--help")[1]


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_checkpoint_that_is_due_at_the_end_is_written_once(train, tiny_job, launcher):
    text = tiny_job.read_text().replace("batch_size: 16", "batch_size: 20")
    cluster = "cluster: {resources: {cpu: {usd_per_hour: 0.04, limit: 9}}, server_resource: cpu}\n"
    tiny_job.write_text(f"{text}checkpoint: {{every_samples: 100}}\nworkers: {{channel: memory}}\n{cluster}")
    code, out, _ = train("job.yaml", "--run", "run", "--launcher", launcher)
    assert (code, re.findall(r"checkpoints/(\S+)", out)) == (0, ["0000000005", "0000000010"])
    code, out, _ = train("job.yaml", "--run", "run", "--launcher", launcher, "--resume")
    assert (code, re.findall(r"checkpoints/(\S+)", out)) == (0, []), "it has all of the run"
