"""How far virtual runs are, while they go on: the policy, the simulated time, the quality so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from heterps.sim.course import Point
from heterps.sim.variants import Variant


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
