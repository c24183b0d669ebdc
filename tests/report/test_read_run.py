import json
import shutil
from pathlib import Path

import pytest

from heterps.errors import ConfigError, RunError
from heterps.report.page.run import render_run
from heterps.report.read_run import read_run


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(Path(__file__).parent / "run", tmp_path / "ctr-1"))


def add(path, text):
    with path.open("a") as file:
        file.write(text)


def test_a_finished_run_is_read_as_it_was_written(folder):
    recorded = read_run(folder)
    assert recorded.job.name == "ctr"
    assert recorded.plan.throughput == 38122.4
    assert recorded.summary == json.loads((folder / "summary.json").read_text())
    assert [line["samples"] for line in recorded.metrics][-2:] == [458_752, 500_000]


def test_a_run_without_a_summary_is_summarised_from_its_metrics(folder):
    (folder / "summary.json").unlink()
    recorded = read_run(folder)
    summary = recorded.summary
    assert (summary["status"], summary["metrics_of"]) == ("unfinished", "interval")
    assert (summary["samples"], summary["auc"], summary["rows"]) == (500_000, 0.769726, 533_000)
    assert summary["measured_throughput"] == pytest.approx(500_000 / 14.374, abs=0.1)
    assert summary["measured_usd"] == pytest.approx(2 * 0.04 * 14.374 / 3600)  # two cores
    page = render_run(recorded.job, recorded.plan, summary, recorded.metrics)
    assert "still running, or was killed" in page
    assert "AUC of the last interval" in page


def test_an_unfinished_run_by_a_plan_is_billed_for_this_machine_and_predicted_nothing(folder):
    (folder / "summary.json").unlink()
    add(folder / "job.yaml", "plan: plan.json\nthreads: 3\n")
    recorded = read_run(folder)
    summary = recorded.summary
    assert (summary["predicted_throughput"], summary["predicted_usd"]) == (None, None)
    assert summary["measured_usd"] == pytest.approx(3 * 0.04 * 14.374 / 3600)
    assert summary["plan"]["throughput"] == 38122.4
    assert "are not rented" in render_run(recorded.job, recorded.plan, summary, recorded.metrics)


def test_a_summary_older_than_the_metrics_is_not_believed(folder):
    resumed = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) | {"samples": 565_536}
    add(folder / "metrics.jsonl", json.dumps(resumed) + "\n")
    assert read_run(folder).summary["samples"] == 565_536


def test_a_line_that_a_crash_cut_off_is_left_out(folder):
    (folder / "summary.json").unlink()
    add(folder / "metrics.jsonl", '{"samples": 565536, "epo')
    assert read_run(folder).summary["samples"] == 500_000


@pytest.mark.parametrize(
    "line", ['{"samples": 5655', "[1]", "{}", '{"samples": null}', "\x00\x00", "7", '{"samples": 7}']
)
def test_a_damaged_line_is_named(folder, line):
    add(folder / "metrics.jsonl", f"{line}\n" + '{"samples": 600000}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl:9: this line is damaged"):
        read_run(folder)


@pytest.mark.parametrize("text", ["{", "[]", "", '{"name": "ctr"}'])
def test_a_damaged_summary_is_named(folder, text):
    (folder / "summary.json").write_text(text)
    with pytest.raises(RunError, match=r"summary\.json is damaged.*Delete it"):
        read_run(folder)


def test_a_run_that_has_measured_nothing_yet_says_so(folder):
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="first 65,536 samples"):
        read_run(folder)


def test_a_folder_that_is_no_run_is_refused(folder, tmp_path):
    with pytest.raises(RunError, match="no such run folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run: there is no job\.yaml"):
        read_run(tmp_path)
    (folder / "plan.json").unlink()
    with pytest.raises(RunError, match=r"is not a run: there is no plan\.json"):
        read_run(folder)


def test_a_damaged_job_is_named_with_its_line(folder):
    add(folder / "job.yaml", "sede: 1\n")
    with pytest.raises(ConfigError, match=r"job\.yaml:4: sede is not a field. Did you mean 'seed'"):
        read_run(folder)
