import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from heterps.report.terminal.run_summary import print_summary


@pytest.fixture
def summary():
    return json.loads((Path(__file__).parent / "run" / "summary.json").read_text())


def printed(summary, folder=Path("runs/ctr-1"), width=80):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_summary(console, folder, summary)
    return console.file.getvalue()


def words(text):
    return " ".join(text.split())


def test_a_stranger_learns_what_came_of_the_run(summary):
    text = words(printed(summary))
    assert "ctr completed: 500,000 samples in 14.4 s, 34,786 samples/s" in text
    assert "Quality on the test set AUC 0.7755 91% of the way from chance to teacher 0.8044" in text
    assert "Normalised entropy 0.8560 14.4% better than always saying the average" in text
    assert "Calibration 1.0032 good: within 2% of 1" in text
    assert "Samples/s 38,122 34,786 8.8% slower" in text
    assert "Cost 0.00029 USD 0.00032 USD 9.6% dearer" in text
    assert "Rows 533,000" in text
    assert "Memory 143 MB 268 bytes a row" in text
    assert "Report runs/ctr-1/report.html" in text
    assert "--resume" not in text


def test_what_is_paid_for_and_not_measured_is_named(summary):
    text = words(printed({**summary, "measured_usd_without": ["traffic between zones", "disks of servers"]}))
    assert "measured without traffic between zones, disks of servers" in text
    assert "without" not in words(printed(summary))


def test_a_model_with_a_loss_of_its_own_is_judged_by_its_ranking_alone(summary):
    text = words(printed({**summary, "own_loss": True}))
    assert text.count("not judged: the model has a loss of its own") == 3
    assert "not judged" not in words(printed(summary))


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_fits_the_screen(summary, width):
    summary["data"] = {"num_rows": 10**9, "num_skipped": 10**6, "missing": {f"C{i}": 10**6 for i in range(26)}}
    assert max(map(len, printed(summary, width=width).splitlines())) <= width


def test_at_eighty_columns_no_word_on_quality_wraps(summary):
    lines = [line.rstrip() for line in printed(summary).splitlines()]
    start = lines.index("Quality on the test set")
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["AUC", "Log", "Normalised", "Calibration"]


def test_skipped_rows_are_a_warning_and_missing_values_a_note(summary):
    summary["data"]["num_skipped"] = 12
    text = words(printed(summary))
    assert "warning: 12 of 500,000 rows were skipped" in text
    assert "note: 116,282 values missing in 4 columns (I12 38,340, C22 38,120, I1 22,611, 1 more in the report)" in text


def test_complete_data_needs_no_word(summary):
    summary["data"] = {"num_rows": 500_000, "num_skipped": 0, "missing": {}}
    assert "warning" not in printed(summary)
    assert "note" not in printed(summary)


def test_a_stopped_run_comes_with_the_command_that_resumes_it(summary, tmp_path):
    folder = tmp_path / "a run"
    (folder / "checkpoints").mkdir(parents=True)
    text = printed(summary | {"status": "stopped by SIGINT"}, folder)
    assert "stopped by SIGINT" in text
    assert f"Resume  heterps train '{folder}/job.yaml' --run '{folder}' --resume\n" in text  # on one line, to be copied


def test_an_unfinished_run_may_be_running_still(summary, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    text = printed(summary | {"status": "unfinished", "metrics_of": "interval"}, tmp_path)
    assert "Quality on the last interval" in text
    assert "--resume (if it is no longer running)" in text


def test_a_run_without_checkpoints_is_not_said_to_be_resumable(summary, tmp_path):
    text = printed(summary | {"status": "unfinished"}, tmp_path)
    assert "--resume" not in text
    assert "cannot be resumed" in text


def test_without_a_teacher_the_auc_is_explained(summary):
    del summary["teacher_auc"]
    assert "AUC 0.7755 77.6% of pairs are ranked right" in words(printed(summary))


def test_a_run_that_trained_nothing_can_be_printed(summary):
    nothing = dict.fromkeys(("samples", "seconds", "samples_per_s", "measured_throughput", "measured_usd", "rows"), 0)
    undefined = dict.fromkeys(("auc", "log_loss", "normalised_entropy", "calibration"))
    text = words(printed(summary | nothing | undefined | {"table_bytes": 0, "status": "stopped by SIGTERM"}))
    assert "AUC undefined needs samples of both labels" in text


def test_names_are_text_and_not_markup(summary):
    assert "[red]ctr[/] completed" in printed(summary | {"name": "[red]ctr[/]"})


def test_accuracy_takes_the_place_of_auc_where_there_are_more_than_two_classes(summary):
    classes = {k: v for k, v in summary.items() if k not in ("auc", "calibration", "teacher_auc")}
    classes |= {"accuracy": 0.9712, "normalised_entropy": None, "rows": 0, "table_bytes": 0, "own_loss": True}
    text = words(printed(classes))
    assert "Accuracy 0.9712 97.1% of samples are told right" in text
    assert "Normalised entropy undefined needs samples of two classes" in text
    assert "AUC" not in text
    assert "Calibration" not in text
    assert "Embedding tables" not in text
