"""The progress of a training run on a terminal: a bar where there is one, a line an interval where there is not."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from heterps.report.emulated import seconds_word
from heterps.report.figures import ratio
from heterps.report.meaning import headline, in_sentence
from heterps.report.terminal.staged_progress import StagedBar, staged_words
from heterps.report.terminal.tables import join_within
from heterps.training.metrics.metrics import Metrics
from heterps.training.run.observer import Observer

REFRESH_S = 0.25


class TrainingProgress(Observer):
    """Shows samples/s, time left, loss, AUC or accuracy, and the stages of a job on workers; use it with `with`.

    has_stages  False for a job in one process, which is one stage on one worker
    """

    def __init__(self, console: Console, *, has_stages: bool = True) -> None:
        self._console, self._has_stages = console, has_stages
        self._bar = StagedBar(
            TextColumn("[bold]train[/]"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("[cyan]{task.fields[rate]}[/]"),
            TimeRemainingColumn(compact=True),
            TextColumn("loss {task.fields[loss]}  {task.fields[score]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._total = 0
        self._shown_s = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def waiting(self, what: str) -> None:
        self._console.print(f"[dim]{escape(what)} ...[/]")

    def began(self, what: str) -> None:
        self._console.print(escape(what))

    def started(self, samples: int, total: int, resumed: bool) -> None:
        if self._task is not None:  # a job that goes on by another plan starts again
            self._bar.remove_task(self._task)
        if resumed:
            self._console.print(f"resumed at {samples:,} of {total:,} samples")
        self._total = total
        self._task = self._bar.add_task("train", total=total, completed=samples, rate="", loss="-", score="")

    def stepped(self, samples: int, seconds: float, loss: float, interval: Metrics) -> None:  # noqa: ARG002
        now = time.monotonic()
        if self._task is None or now - self._shown_s < REFRESH_S:
            return
        self._shown_s = now
        rate = samples / seconds if seconds else 0.0
        self._bar.update(
            self._task,
            completed=samples,
            rate=f"{rate:,.0f}/s{seconds_word(self._bar.view or {})}",
            loss=f"{interval.loss:.4f}",
            score=_score(interval.fields()),
        )

    def measured(self, line: dict[str, Any]) -> None:
        if "validation" in line:
            found = line["validation"]
            best = "  [green]best so far[/]" if found["is_best"] else ""
            self._console.print(f"validation at {line['samples']:,} samples: {_score(found)}{best}")
        if not self._console.is_terminal:
            words = [
                f"{line['samples']:>12,} samples",
                f"{line['samples_per_s'] or 0:>8,.0f}/s",
                f"loss {ratio(_loss(line))}",
                _score(line),
                *([f"{line['rows']:,} rows"] if line["rows"] else []),
                *(staged_words(line) if self._has_stages else []),
            ]
            self._console.print(Text(join_within(words, self._console.width, indent=2)), soft_wrap=True)

    def staged(self, view: dict[str, Any]) -> None:
        if self._has_stages:
            self._bar.view = view

    def changed(self, what: str) -> None:
        self._console.print(f"[bold]changed:[/] {escape(what)}")

    def saved(self, path: str, seconds: float) -> None:
        self._console.print(f"[dim]checkpoint {escape(path)} ({seconds:.1f} s)[/]")

    def warned(self, message: str) -> None:
        self._console.print(f"[bold yellow]warning:[/] {escape(message)}")

    def evaluating(self, samples: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=self._total)
        self._console.print(f"[dim]evaluating {samples:,} test samples[/]")


def _loss(line: dict[str, Any]) -> float | None:
    """The loss of a line of metrics.jsonl, whatever its labels are."""
    found: float | None = line["loss"] if "loss" in line else line["log_loss"]
    return found


def _score(figures: dict[str, Any]) -> str:
    title, value = headline(figures)
    return f"{in_sentence(title)} {ratio(value)}"
