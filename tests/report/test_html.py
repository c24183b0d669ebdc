import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from heterps.config import Job, Servers, load_job
from heterps.planning.plan import Plan, PlannedServers, Stage, load_plan
from heterps.report.page.run import render_run

RUN = Path(__file__).parent / "run"
VOID = {"meta", "br", "hr", "link", "img", "input"}
HOSTILE = "<script>alert('x')</script>&\""


@pytest.fixture
def job():
    return load_job(RUN / "job.yaml")


@pytest.fixture
def plan():
    return load_plan(RUN / "plan.json")


@pytest.fixture
def summary():
    return json.loads((RUN / "summary.json").read_text())


@pytest.fixture
def metrics():
    return [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps the text and the tags."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.tags = [], "", set()
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data + " "

    def says(self, *words):
        text = " ".join(self.text.split())
        missing = [word for word in words if word not in text]
        assert not missing, f"{missing} not in: {text}"


def test_the_headline_says_what_it_trained_to_how_fast_and_for_how_much(job, plan, summary, metrics):
    page = Page(render_run(job, plan, summary, metrics))
    page.says("ctr completed", "Test AUC 0.7755", "91% of the way from chance to teacher 0.8044")
    page.says("Samples 500,000", "Samples/s 34,786", "Cost 0.00032 USD", "0.64 USD a billion samples")


def test_predictions_stand_beside_measurements(job, plan, summary, metrics):
    page = Page(render_run(job, plan, summary, metrics))
    page.says("Samples/s 38,122 34,786 8.8% slower", "Time 13.1 s 14.4 s 9.6% longer")
    page.says("Cost 0.00029 USD 0.00032 USD 9.6% dearer", "0.04 USD for an hour of one cpu")


def test_metrics_of_test_and_training_come_with_their_meaning(job, plan, summary, metrics):
    page = Page(render_run(job, plan, summary, metrics))
    page.says("AUC 0.7755 0.7582", "Log loss 0.4582 0.4691", "Calibration 1.0032 1.0019 Good: within 2% of 1.")
    page.says(
        "Normalised entropy 0.8560 0.8762 14.4% better than always saying the average.", "Judged on the test set."
    )


def test_every_chart_is_well_formed_svg(job, plan, summary, metrics):
    page = render_run(job, plan, summary, metrics)
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.S)]
    names = [chart.get("aria-label").partition(":")[0] for chart in charts]
    assert names == ["Log loss", "AUC", "Normalised entropy", "Calibration", "Samples/s", "Rows", "Table memory"]
    assert charts[1].get("aria-label") == "AUC: 0.7697 at 500,000 samples"
    assert charts[6].get("aria-label") == "Table memory: 143 MB at 500,000 samples"


def test_the_page_loads_nothing_and_runs_nothing(job, plan, summary, metrics):
    html = render_run(job, plan, summary, metrics)
    assert not Page(html).tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"url\(|@import|src=|href=|javascript:", html)
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_everything_a_user_named_is_escaped(summary, metrics):
    cluster = {
        "resources": {HOSTILE: {"usd_per_hour": 1.0, "limit": 4}, "gpu": {"usd_per_hour": 2.0, "limit": 1}},
        "server_resource": HOSTILE,
    }
    columns = {"dense": [HOSTILE], "slots": ["C1"]}
    job = Job.model_validate(
        {
            "name": HOSTILE, "model": {"factory": HOSTILE, "args": {"a": HOSTILE}},
            "data": {"train": [HOSTILE, "b"], "columns": columns}, "cluster": cluster,
        }
    )  # fmt: skip
    plan = Plan(
        method=HOSTILE, stages=(Stage(first=0, last=2, resource=HOSTILE, count=2),),
        servers=PlannedServers(resource=HOSTILE, count=1), throughput=1.0, hours=1.0, usd=1.0, bottleneck=HOSTILE,
    )  # fmt: skip
    summary |= {"name": HOSTILE, "status": f"stopped by {HOSTILE}", "data": {"num_rows": 1, "missing": {HOSTILE: 1}}}
    page = Page(html := render_run(job, plan, summary, metrics))
    assert "script" not in page.tags
    assert "<script" not in html
    page.says(HOSTILE, f"2 × {HOSTILE}: layers 0 to 2", f"1 × {HOSTILE}: parameter servers", f"stopped by {HOSTILE}")


def test_the_plan_is_drawn_with_a_cell_for_each_layer(job, plan, summary, metrics):
    stages = (Stage(first=0, last=0, resource="cpu", count=48), Stage(first=1, last=8, resource="v100", count=4))
    mixed = plan.model_copy(
        update={"stages": stages, "servers": PlannedServers(resource="cpu", count=6), "gap": 0.031, "method": "greedy"}
    )
    html = render_run(job, mixed, summary, metrics)
    cells = [stage.count("<i></i>") for stage in re.findall(r'<div class="stage.*?</div>', html)]
    assert cells == [1, 8]
    colours = re.findall(r'<div class="stage (colour-\d)"', html)
    assert len(set(colours)) == 2
    page = Page(html)
    page.says("48 × cpu: layer 0", "4 × v100: layers 1 to 8", "6 × cpu: parameter servers", "method greedy")
    page.says("It costs 3.1% more than the cheapest plan", "2.42 USD for an hour of one v100")


def test_servers_that_a_plan_does_not_count_are_told(job, plan, summary, metrics):
    alone = plan.model_copy(update={"servers": PlannedServers(resource="cpu", count=0)})
    Page(render_run(job, alone, summary, metrics)).says("No parameter servers: the tables are in the training process")
    served = job.model_copy(update={"servers": Servers(addresses=("ipc://./ps-0", "ipc://./ps-1"))})
    Page(render_run(served, alone, summary, metrics)).says("Parameter servers of the job: 2.")


def test_missing_data_is_counted_by_column_with_what_was_done(job, plan, summary, metrics):
    page = Page(render_run(job, plan, summary, metrics))
    page.says("500,000 rows read, 0 skipped, 116,282 values missing in 4 columns.")
    page.says("I12 38,340 filled with 0", "C22 38,120 given a key of its own")


def test_skipped_rows_are_called_so(job, plan, summary, metrics):
    columns = job.data.columns.model_copy(update={"dense_missing": "skip", "slot_missing": "skip"})
    skipping = job.model_copy(update={"data": job.data.model_copy(update={"columns": columns})})
    summary["data"] = {"num_rows": 900, "num_skipped": 7, "missing": {"I1": 3, "C1": 4}}
    Page(render_run(skipping, plan, summary, metrics)).says("7 skipped", "I1 3 row skipped", "C1 4 row skipped")


def test_complete_data_is_called_complete(job, plan, summary, metrics):
    summary["data"] = {"num_rows": 900, "num_skipped": 0, "missing": {}}
    Page(render_run(job, plan, summary, metrics)).says("900 rows read, 0 skipped, no value missing.")


def test_a_stopped_run_is_not_held_to_the_prediction_for_the_whole_job(job, plan, summary, metrics):
    summary |= {"status": "stopped by SIGINT", "restarts": 1, "metrics_of": "train"}
    whole = plan.model_copy(update={"hours": 10.0, "usd": 0.8})
    page = Page(render_run(job, whole, summary, metrics))
    page.says("stopped by SIGINT", "Resumed 1 time.", "Training AUC", "Cost 0.00029 USD 0.00032 USD")
    page.says("500,000 samples trained so far; the whole job was predicted to take 10 h 0 min and cost 0.80 USD")


@pytest.mark.parametrize("num_lines", [0, 1])
def test_short_runs_have_a_report(job, plan, summary, metrics, num_lines):
    html = render_run(job, plan, summary, metrics[:num_lines])
    Page(html).says("Course of training", "No interval ended" if num_lines == 0 else "0.4987")


def test_undefined_metrics_are_called_undefined(job, plan, summary, metrics):
    fields = ("auc", "normalised_entropy", "calibration", "log_loss")
    nothing = dict.fromkeys(fields)
    summary |= nothing | {"train": nothing}
    lines = [line | nothing | {"samples_per_s": None} for line in metrics]
    Page(render_run(job, plan, summary, lines)).says("Test AUC undefined", "No values were recorded.", "533,000")


def test_a_run_stopped_before_its_first_step_has_a_report(job, plan, summary):
    nothing = dict.fromkeys(("samples", "seconds", "samples_per_s", "measured_throughput", "measured_usd", "rows"), 0)
    summary |= nothing | {"status": "stopped by SIGTERM", "predicted_throughput": 0.0, "auc": None}
    Page(render_run(job, plan, summary, [])).says("stopped by SIGTERM", "Samples 0", "no prediction")


def test_the_job_is_there_whole(job, plan, summary, metrics):
    Page(render_run(job, plan, summary, metrics)).says("batch_size: 4096", "every_minutes: 10.0")


# --- more than two classes -------------------------------------------------------------------------------------------


@pytest.fixture
def classes(job, summary, metrics):
    """The same run as if it had told ten classes apart, without tables."""
    columns = job.data.columns.model_copy(update={"num_classes": 10})
    job = job.model_copy(update={"data": job.data.model_copy(update={"columns": columns})})
    gone = ("auc", "calibration")
    train = {k: v for k, v in summary["train"].items() if k not in gone} | {"accuracy": 0.8123}
    summary = {k: v for k, v in summary.items() if k not in (*gone, "teacher_auc")}
    summary |= {"accuracy": 0.9712, "train": train, "rows": 0, "table_bytes": 0, "own_loss": False}
    lines = [{k: v for k, v in line.items() if k not in gone} for line in metrics]
    lines = [line | {"accuracy": 0.1 * i, "rows": 0, "table_bytes": 0} for i, line in enumerate(lines, start=1)]
    return job, summary, lines


def test_accuracy_takes_the_place_of_auc_where_there_are_more_than_two_classes(classes, plan):
    job, summary, lines = classes
    page = Page(html := render_run(job, plan, summary, lines))
    page.says(
        "Test accuracy 0.9712", "1 in 10 is chance, 1 is perfect", "Accuracy 0.9712 0.8123 97.1% of samples are told"
    )
    page.says("Log loss 0.4582 0.4691 Nats a sample", "14.4% better than always saying the average")
    assert "AUC" not in page.text
    assert "not judged" not in page.text.lower()
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.S)]
    names = [chart.get("aria-label").partition(":")[0] for chart in charts]
    assert names == ["Log loss", "Accuracy", "Normalised entropy", "Samples/s"]
    assert charts[1].get("aria-label") == "Accuracy: 0.8000 at 500,000 samples"


def test_of_classes_told_by_another_loss_only_the_accuracy_is_judged(classes, plan):
    job, summary, lines = classes
    page = Page(render_run(job, plan, summary | {"own_loss": True}, lines))
    page.says("97.1% of samples are told right", "Log loss 0.4582 0.4691 Not judged: the model has a loss of its own")


@pytest.mark.parametrize(
    ("metrics_of", "title"), [("train", "Training accuracy"), ("interval", "Accuracy of the last interval")]
)
def test_the_headline_says_which_samples_the_accuracy_is_of(classes, plan, metrics_of, title):
    job, summary, lines = classes
    Page(render_run(job, plan, summary | {"metrics_of": metrics_of}, lines)).says(f"{title} 0.9712")
