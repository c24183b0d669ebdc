from plans import recording_console
from staged_run import BUSY, STAGES, a_stage

from heterps.report.terminal.stage_table import stage_table


def printed(stages, width=80):
    console = recording_console(width)
    console.print(stage_table(stages))
    return console.file.getvalue()


def test_each_stage_has_its_resource_workers_rate_shares_and_queue():
    heads, first, second = printed(STAGES).splitlines()
    assert heads.split() == ["stage", "workers", "samples/s", "compute", "communicate", "wait", "queue"]
    assert first.split() == ["1", "cpu", "3", "1,000", "20%", "10%", "70%", "██▒▒········", "0.2"]
    assert second.split()[:7] == ["2", "v100", "1", "1,000", "90%", "5%", "5%"]


def test_it_fits_the_screen_with_long_names_and_large_numbers():
    stages = [BUSY | {"resource": "a-resource-with-a-very-long-name", "workers": 4096, "samples_per_s": 123_456_789.0}]
    assert max(map(len, printed(stages).splitlines())) <= 80


def test_stages_that_have_told_nothing_yet_can_be_shown():
    line = printed([a_stage(compute=None, communicate=None, wait=None, samples_per_s=None)]).splitlines()[1]
    assert line.split() == ["1", "cpu", "3", "0.0", "-", "-", "-", "0.2"]
