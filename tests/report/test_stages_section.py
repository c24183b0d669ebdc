"""The page and the summary of a run by a plan, from figures made by hand."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from plans import make_plan, recording_console
from staged_run import EMULATED, LATE, STAGES, a_stage, staged, staged_line

from heterps.config import load_job
from heterps.report.page.run import render_run
from heterps.report.read_run import read_run
from heterps.report.terminal.run_summary import print_summary

RUN = Path(__file__).parent / "run"
PLAN = make_plan(("cpu", 1, 3), ("v100", 6, 1), servers=1)


@pytest.fixture
def summary():
    return staged(json.loads((RUN / "summary.json").read_text()))


@pytest.fixture
def metrics():
    lines = (RUN / "metrics.jsonl").read_text().splitlines()
    return [staged_line(json.loads(line)) for line in lines]


def page(summary, metrics, plan=PLAN):
    job = load_job(RUN / "job.yaml").model_copy(update={"launcher": "local", "plan": "plan.json"})
    html = render_run(job, plan, summary, metrics)
    return html, unescape(" ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.S).split()))


def printed(summary):
    console = recording_console(80)
    print_summary(console, Path("runs/ctr-1"), summary)
    return " ".join(console.file.getvalue().split())


def test_the_page_has_a_row_and_a_chart_for_each_stage(summary, metrics):
    html, text = page(summary, metrics)
    assert "1 cpu 0 3 1,000 20% 10% 70% 0.2" in text
    assert "2 v100 (bottleneck) 1 to 6 1 1,000 90% 5% 5% 0.2" in text
    assert (
        "Kept in step by ssp:3; mean staleness 1.25 (updates of others); largest lead 3 (stage 1), 2 (stage 2)." in text
    )
    assert html.count('class="share compute"') == 2 * len(metrics)
    assert "Staleness" in text
    assert "are not rented" not in text, "it followed the plan"
    assert "EMULATED" not in text
    assert "no longer those of the plan" not in text


def test_the_summary_has_the_stages_the_policy_and_the_restarts(summary):
    text = printed(summary | {"restarts": 2, "recoveries": 1, "repeated_samples": 1024})
    assert "1 cpu 3 1,000 20% 10% 70%" in text
    assert (
        "Kept in step by ssp:3; mean staleness 1.25 (updates of others); largest lead 3 (stage 1), 2 (stage 2)." in text
    )
    assert "Resumed 2 times" in text
    assert "1 worker was lost and replaced; 1,024 samples were computed again." in text
    assert "EMULATED" not in text


@pytest.mark.parametrize("shown", [lambda s, m: page(s, m)[1], lambda s, _: printed(s)])
def test_emulated_figures_have_a_banner_with_the_scale_and_what_was_late(summary, metrics, shown):
    text = shown(summary | EMULATED | {"stages": LATE}, metrics)
    assert "EMULATED : seconds" in text or "EMULATED: seconds" in text
    assert "takes 28 real ones" in text
    assert "Predicted and measured, of the emulated units" in text
    assert "this machine could not keep up" in text
    assert "stage 2 (v100) was late by 12.0 s of this machine, 45% of its workers' time" in text
    assert "raise emulation.scale to 31" in text, "38,122 were predicted and 34,786 measured"
    assert "could not keep up" not in shown(summary | EMULATED, metrics)


@pytest.mark.parametrize("shown", [lambda s, m: page(s, m)[1], lambda s, _: printed(s)])
def test_where_nothing_is_predicted_people_are_told_how_it_could_be(summary, metrics, shown):
    text = shown(summary | {"predicted_throughput": None, "predicted_usd": None}, metrics)
    assert "no prediction" in text
    assert "Nothing was predicted for this run" in text
    assert "`heterps profile`" in text
    assert "Nothing was predicted" not in shown(summary, metrics)


def test_workers_that_are_no_longer_those_of_the_plan_are_told_of(summary, metrics):
    scaled = summary | {"stages": [a_stage(workers=5), STAGES[1]]}
    assert "no longer those of the plan" in page(scaled, metrics)[1]


def test_lines_from_before_a_new_plan_leave_gaps(summary, metrics):
    html, _ = page(summary, [{**metrics[0], "stages": [a_stage()]}, *metrics[1:]])
    assert html.count('class="share compute"') == 2 * len(metrics) - 1


def test_what_was_missing_in_data_that_workers_read_is_told(summary, metrics):
    _, text = page(summary, metrics)
    assert "What was missing in the data is counted when a run ends." in text
    _, text = page(summary | {"data": {"num_rows": 900, "num_skipped": 7, "missing": {"I1": 3}}}, metrics)
    assert "900 rows read, 7 skipped, 3 values missing in 1 column." in text


def test_an_unfinished_run_by_a_plan_is_summarised_with_its_last_interval(tmp_path, metrics):
    folder = Path(shutil.copytree(RUN, tmp_path / "ctr-1"))
    (folder / "summary.json").unlink()
    (folder / "plan.json").write_text(PLAN.model_dump_json(exclude_none=True))
    with (folder / "job.yaml").open("a") as file:
        file.write("launcher: local\nplan: plan.json\nsync: ssp:3\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line | EMULATED) + "\n" for line in metrics))
    recorded = read_run(folder)
    assert recorded.summary["measured_usd"] == 0.0042
    assert recorded.summary["predicted_throughput"] == 1000.0
    text = printed(recorded.summary)
    assert "Stages in the last interval" in text
    assert "Kept in step by ssp:3; mean staleness 1.25" in text
    assert "EMULATED" in text
    assert "not rented" not in text
    assert "in the last interval" in page(recorded.summary, recorded.metrics)[1]
