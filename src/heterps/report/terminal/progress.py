"""How far a command is while it runs: a search, a simulation, or virtual runs. A training run has a bar of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from heterps.sim import Scenario
    from heterps.sim.course import Point
    from heterps.sim.variants import Variant


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


@contextmanager
def show_simulation_progress(
    console: Console, scenario: Scenario, name: str
) -> Iterator[Callable[[float, int], None] | None]:
    """Yields a function that is told the simulated seconds and the pushes so far; None without a terminal.

    The bar is over the simulated time, or over the pushes where only these end the simulation.
    """
    if not console.is_terminal:
        yield None
        return
    by_time = scenario.horizon_s is not None
    total = scenario.horizon_s or float((scenario.iterations or 0) * len(scenario.seconds))
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"simulating {name}", total=total)
        yield lambda now, pushes: bar.update(task, completed=now if by_time else float(pushes))


@contextmanager
def show_virtual_progress(
    console: Console, variants: Sequence[Variant], num_seeds: int, num_points: int
) -> Iterator[Callable[[Variant, int, Point], None]]:
    """Yields a function that is told each point of each run, from any thread.

    On a terminal it shows one bar per policy over `num_points` for each seed, elsewhere nothing.
    """
    if not console.is_terminal:
        yield lambda _variant, _seed, _point: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[told]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {v: bars.add_task(v.label, total=num_seeds * num_points, told="", start=False) for v in variants}
        lock = Lock()

        def tell(variant: Variant, seed: int, point: Point) -> None:
            with lock:
                told = f"{point.now_s:,.0f} s, {point.quality:.4f}, seed {seed}"
                bars.start_task(tasks[variant])
                bars.update(tasks[variant], advance=1, told=told)

        yield tell
