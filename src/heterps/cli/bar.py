"""A bar on the terminal that shows how many rows a command has dealt with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from heterps.report.terminal.consoles import make_console


@contextmanager
def show_bar(begin: str, noun: str, *, is_shown: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yields a function that is told what was done to how many more rows, and of how many in all if that is known.

    On a terminal it shows a bar, elsewhere the line `begin`.
    """
    console = make_console(stderr=True)
    if is_shown and not console.is_terminal:
        console.print(begin)
    columns = (TextColumn("{task.description} " + noun), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (is_shown and console.is_terminal)) as bar:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, rows: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.advance(tasks[what], rows)

        yield advance
