import json
import shutil
from pathlib import Path

import pytest

from heterps.cli import main

RUN = Path(__file__).parents[1] / "report" / "run"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(RUN, tmp_path / "ctr-1"))


def report(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["report", *map(str, arguments)])
    return stopped.value.code, *capsys.readouterr()


def test_a_run_is_printed_and_its_report_written_anew(folder, capsys):
    (folder / "report.html").write_text("old")
    code, out, err = report(capsys, folder)
    assert (code, err) == (0, "")
    assert "ctr completed: 500,000 samples" in out
    page = (folder / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "0.7755" in page


def test_json_is_the_summary_and_nothing_else(folder, capsys):
    code, out, _ = report(capsys, folder, "--json")
    assert code == 0
    assert json.loads(out) == json.loads((folder / "summary.json").read_text())
    assert (folder / "report.html").exists()


def test_a_killed_run_is_reported_so_far(folder, capsys):
    (folder / "summary.json").unlink()
    code, out, _ = report(capsys, folder)
    assert code == 0
    assert "ctr unfinished: 500,000 samples" in out
    assert not (folder / "summary.json").exists()


@pytest.mark.parametrize("gone", ["job.yaml", "plan.json"])
def test_what_is_no_run_ends_with_the_code_of_a_bad_run(folder, capsys, gone):
    (folder / gone).unlink()
    code, out, err = report(capsys, folder)
    assert (code, out) == (6, "")
    assert f"is not a run: there is no {gone}" in err


def test_a_damaged_line_ends_with_its_place_and_no_traceback(folder, capsys):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("{oops\n")
    code, _, err = report(capsys, folder)
    assert code == 6
    assert "metrics.jsonl:9: this line is damaged: '{oops'" in err
    assert "Traceback" not in err


def test_a_report_that_cannot_be_written_is_a_storage_error(folder, capsys):
    (folder / ".report.html.part").mkdir()
    code, _, err = report(capsys, folder)
    assert code == 7
    assert "report.html: cannot be written" in err
