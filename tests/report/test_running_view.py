"""A running job on the console."""

from __future__ import annotations

import io

from elastic import make_plan

from heterps.report.terminal.consoles import make_console
from heterps.report.terminal.plan_table import plans_table
from heterps.report.terminal.running import status_table

STAGE = {"resource": "cpu", "workers": 3, "samples_per_s": 12_742.0, "compute": 0.61, "communicate": 0.2, "wait": 0.19}
STATUS = {
    "samples": 400, "total": 1000, "seconds": 252.0, "usd": 0.031, "usd_per_hour": 0.44, "staleness": 1.5,
    "stages": [STAGE | {"queue": 0.3}], "change": "", "last_change": "",
}  # fmt: skip


def shown(view):
    console = make_console()
    console.file, console.width = io.StringIO(), 100
    console.print(view)
    return console.file.getvalue()


def test_a_line_about_the_job_and_a_row_a_stage():
    text = shown(status_table("runs/a", STATUS))
    assert "runs/a  400 of 1,000 samples (40%), 4 min 12 s, 0.031 USD so far at 0.44 USD an hour" in text
    assert [word for word in ("1 cpu", "12,742", "61%", "20%", "19%", "0.3", "staleness 1.5") if word not in text] == []
    assert "change" not in text


def test_an_alarm_is_told():
    told = STATUS | {"alarm": "training diverges: at 64 samples"}
    assert "warning: training diverges: at 64" in shown(status_table("a", told))


def test_changes_are_told_as_they_are_and_a_name_is_no_markup():
    told = STATUS | {"change": "stage 1 from [bold] to 3", "last_change": "stage 2: given up, it died"}
    text = shown(status_table("runs/[red]", told))
    assert "runs/[red]  400" in text
    assert "changes: stage 1 from [bold] to 3" in text
    assert "last change: stage 2: given up, it died" in text


def test_figures_of_emulated_units_are_marked():
    text = " ".join(shown(status_table("runs/a", STATUS | {"emulated": {"scale": 500.0}})).split())
    assert "4 min 12 s, emulated, 0.031 USD" in text
    assert "EMULATED: seconds, samples/s and USD are those of the units that this machine emulates" in text
    assert "500 real ones." in text
    assert "EMULATED" not in shown(status_table("runs/a", STATUS))


def test_a_run_without_stages_and_one_without_samples_are_shown_too():
    text = shown(status_table("a", {"samples": 0, "total": 0, "seconds": 0.0, "usd": 0.0, "stages": []}))
    assert "0 of 0 samples (100%), 0.0 s, 0.00 USD so far\n" in text


def test_two_plans_have_a_tick_at_the_one_that_the_job_goes_on_by():
    old, new = make_plan([2], []), make_plan([1, 1], [2], throughput=320.0, hours=2.0, usd=0.5)
    lines = shown(plans_table(old, new, is_chosen=True)).splitlines()
    runs, other = (next(line for line in lines if f" {name} " in line) for name in ("runs", "new"))
    assert "✓" in other
    assert "✓" not in runs
    assert "cpu×1 [0..1] → big×1 [2..4]" in other
    named = new.model_copy(update={"layers": ("ids", "cat", "fc1", "relu", "fc2")})
    assert "cpu×1 [ids..cat] → big×1 [fc1..fc2]" in shown(plans_table(named, new, is_chosen=True))
    assert runs.split()[-3:] == ["-", "-", "-"], "without a prediction there are no figures"
    assert other.split()[-3:] == ["320", "2", "0.50"]
    assert "✓" in next(line for line in shown(plans_table(old, new, is_chosen=False)).splitlines() if " runs " in line)
