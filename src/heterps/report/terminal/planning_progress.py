"""What a long search is at, and for how long, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def show_progress(console: Console, what: str, *, only_terminal: bool = False) -> Iterator[Callable[[str], None]]:
    """Yields a function that is told what is under way: one line with a clock on a terminal, elsewhere a line each.

    only_terminal  prints nothing elsewhere, for what is told too often to be read
    """
    if not console.is_terminal:
        yield lambda name: None if only_terminal else console.print(f"{what} {name}", markup=False)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    line = Progress(*columns, console=console, transient=True)

    def announce(name: str) -> None:
        for task in line.task_ids:
            line.remove_task(task)
        line.add_task(f"{what} {name}", total=None)

    with line:
        yield announce
