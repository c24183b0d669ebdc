"""The progress of a run on a terminal and where there is none."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from heterps.config import Schema
from heterps.report.terminal import training_progress as progress_module
from heterps.report.terminal.training_progress import TrainingProgress
from heterps.training.model.objectives import Objectives

LINE = {"samples": 4096, "samples_per_s": 123_456.7, "log_loss": 0.51234, "auc": 0.71234, "rows": 99_000}


@pytest.fixture
def shown():
    """What is shown of `happen(progress)`, on a terminal or not."""

    def shown(happen, *, terminal):
        console = Console(file=StringIO(), force_terminal=terminal, width=160, color_system=None, highlight=False)
        with TrainingProgress(console) as progress:
            happen(progress)
        return console.file.getvalue()

    return shown


def interval():
    metrics = Objectives().metrics()
    metrics.update(np.array([-1.0, 1.0, 2.0], np.float32), np.array([0.0, 1.0, 1.0], np.float32))
    return metrics


def test_a_job_that_goes_on_by_another_plan_has_one_bar(shown):
    def happen(progress):
        progress.started(0, 10_000, resumed=False)
        progress.started(5_000, 10_000, resumed=True)

    last = shown(happen, terminal=True).rpartition("\x1b[2K")[2]
    assert last.count("/10,000") == 1, "what was drawn last"
    assert "5,000/10,000" in last


@pytest.mark.parametrize("terminal", [True, False])
def test_a_job_that_began_again_is_evaluated_with_a_full_bar(shown, terminal):
    def happen(progress):
        progress.started(0, 10_000, resumed=False)
        progress.started(5_000, 10_000, resumed=True)
        progress.evaluating(60)

    text = shown(happen, terminal=terminal)
    assert "evaluating 60 test samples" in text
    assert ("10,000/10,000" in text) == terminal


def test_a_terminal_has_a_bar_with_samples_rate_loss_and_auc(shown, monkeypatch):
    monkeypatch.setattr(progress_module, "REFRESH_S", 0.0)

    def happen(progress):
        progress.started(0, 10_000, resumed=False)
        progress.stepped(5_000, 0.5, 0.7, interval())
        progress.measured(LINE)

    text = shown(happen, terminal=True)
    assert "5,000/10,000" in text
    assert "10,000/s" in text
    assert f"loss {interval().loss:.4f}  AUC 1.0000" in text
    assert "4,096 samples" not in text, "the bar says it"


def test_without_a_terminal_there_is_a_line_an_interval_and_no_bar(shown):
    def happen(progress):
        progress.started(0, 10_000, resumed=False)
        progress.stepped(5_000, 0.5, 0.7, interval())
        progress.measured(LINE)
        progress.measured({**LINE, "auc": None, "samples_per_s": None})

    first, second = shown(happen, terminal=False).splitlines()
    assert first.split() == ["4,096", "samples", "123,457/s", "loss", "0.5123", "AUC", "0.7123", "99,000", "rows"]
    assert "AUC undefined" in second


@pytest.mark.parametrize("terminal", [True, False])
def test_what_happens_beside_training_is_told(shown, terminal):
    def happen(progress):
        progress.started(600, 1_000, resumed=True)
        progress.saved("runs/[a]-1/checkpoints/0000000005", 0.25)
        progress.warned("the rows [1, 2] are odd")
        progress.evaluating(60)

    text = shown(happen, terminal=terminal)
    assert "resumed at 600 of 1,000 samples" in text
    assert "checkpoint runs/[a]-1/checkpoints/0000000005 (0.2 s)" in text
    assert "warning: the rows [1, 2] are odd" in text
    assert "evaluating 60 test samples" in text


def test_of_more_than_two_classes_the_accuracy_is_shown_and_no_rows_where_there_are_no_tables(shown, monkeypatch):
    monkeypatch.setattr(progress_module, "REFRESH_S", 0.0)
    metrics = Objectives(Schema(num_classes=3)).metrics()
    metrics.update(np.eye(3)[[0, 1, 2, 2]], np.array([0, 1, 2, 0]))
    line = {"samples": 4096, "samples_per_s": 100.0, "log_loss": 0.5, "accuracy": 0.75, "rows": 0}

    def happen(progress):
        progress.started(0, 10_000, resumed=False)
        progress.stepped(5_000, 0.5, 0.7, metrics)
        progress.measured(line)

    assert f"loss {metrics.loss:.4f}  accuracy 0.7500" in shown(happen, terminal=True)
    words = shown(happen, terminal=False).split()
    assert words == ["4,096", "samples", "100/s", "loss", "0.5000", "accuracy", "0.7500"]
