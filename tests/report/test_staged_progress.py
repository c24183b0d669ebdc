"""A job on workers on a terminal and where there is none."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from staged_run import EMULATED, LATE, STAGES, VIEW, a_stage, staged_line

from heterps.report.terminal.staged_progress import staged_words
from heterps.report.terminal.training_progress import TrainingProgress

LINE = {"samples": 4096, "samples_per_s": 1234.5, "log_loss": 0.5, "auc": 0.7, "rows": 99}


def shown(view, *, terminal=True, line=None):
    console = Console(file=StringIO(), force_terminal=terminal, width=140, color_system=None, highlight=False)
    with TrainingProgress(console) as progress:
        progress.started(0, 10_000, resumed=False)
        progress.staged(view)
        progress.changed("2 cpu + 1 v100 from 640 samples on")
        if line is not None:
            progress.measured(line)
    return console.file.getvalue()


def test_below_the_bar_stands_each_stage_and_what_holds_for_all():
    text = shown(VIEW)
    assert "0/10,000" in text
    assert "communicate" in text
    assert " ".join(text.split()).count("2 v100 1 1,000 90% 5% 5%") >= 1
    assert "bottleneck stage 2 (v100)  staleness 1.25  0.0042 USD so far, in 12.0 s\n" in text.replace("\r", "\n")
    assert "EMULATED" not in text
    assert "changed: 2 cpu + 1 v100 from 640 samples on" in text


def test_emulated_figures_are_called_so_with_the_scale_and_the_time_left_is_real():
    text = " ".join(shown({**VIEW, **EMULATED}).split())
    assert "0.0042 USD so far, in 12.0 s, emulated" in text
    assert "EMULATED: seconds, samples/s and USD are those of the units that this machine emulates" in text
    assert "takes 28 real ones; the time left beside the bar is real" in text
    assert "late:" not in text


def test_a_machine_that_cannot_keep_up_is_told_of_while_there_is_time():
    text = shown({**VIEW, **EMULATED, "stages": LATE})
    assert "late: this machine is too slow for stage 2 (v100); raise emulation.scale" in text


def test_where_there_is_no_terminal_a_line_an_interval_names_the_bottleneck():
    text = shown(VIEW, terminal=False, line=staged_line(LINE, **EMULATED, stages=LATE))
    line = " ".join(text.split())
    assert "4,096 samples" in line
    assert "0.0042 USD bottleneck stage 2 (v100): compute 90%, communicate 5%, wait 5% staleness 1.25" in line
    assert line.endswith("EMULATED (scale 28) late: stage 2 (v100)")


def test_a_line_of_an_inline_run_says_nothing_of_stages():
    assert staged_words(LINE) == []
    assert not any("EMULATED" in word for word in staged_words(staged_line(LINE)))


def test_without_a_terminal_the_lines_of_an_interval_fit_80_columns_and_break_no_phrase():
    line = staged_line({**LINE, "samples": 1_234_567_890, "rows": 987_654_321}, **EMULATED)
    first, second, third = shown_without_terminal(line, width=80).splitlines()
    assert max(map(len, (first, second, third))) <= 80
    assert first.endswith("987,654,321 rows")
    assert second.startswith("  0.0042 USD")
    assert "wait 5%" in f"{second}{third}"
    assert "staleness 1.25" in third
    assert len(shown_without_terminal(line, width=300).splitlines()) == 1


def shown_without_terminal(line, width):
    console = Console(file=StringIO(), force_terminal=False, width=width, color_system=None, highlight=False)
    with TrainingProgress(console) as progress:
        progress.measured(line)
    return console.file.getvalue()


def test_stages_that_have_told_nothing_yet_can_be_watched():
    nothing = a_stage(compute=None, communicate=None, wait=None, samples_per_s=None, late=None)
    text = shown({**VIEW, **EMULATED, "stages": [nothing, *STAGES]})
    assert "bottleneck" not in text
