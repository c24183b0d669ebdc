"""`heterps simulate --job`: the policies compared by what a job learns with each, on a simulated clock."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps.config import load_job
from heterps.report.terminal.consoles import make_console

if TYPE_CHECKING:
    from heterps.sim import Scenario
    from heterps.sim.compare import VariantComparison
    from heterps.sim.course import VirtualRun
    from heterps.sim.variants import Variant


def train(
    path: Path,
    scenario: Scenario,
    words: str | None,
    *,
    target: float | None,
    seeds: int,
    epochs: int | None,
    points: int | None,
    processes: int | None,
    wants_advice: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Trains the job at `path` under every policy of `words`, and shows how soon each reaches the target.

    A scenario without a seed takes the job's.
    """

    from heterps.cli.output import print_json
    from heterps.report.page.templates import write_text
    from heterps.report.page.virtual import render_virtual_page
    from heterps.report.terminal.progress import show_virtual_progress
    from heterps.report.terminal.virtual_table import show_comparison
    from heterps.sim.compare import advise, compare
    from heterps.sim.course import Course
    from heterps.sim.played import why_not_as_job
    from heterps.sim.runs import train_all

    job = load_job(path)
    if "seed" not in scenario.model_fields_set:
        scenario = scenario.model_copy(update={"seed": job.seed})
    variants = _variants(words, scenario)
    course = Course(epochs=epochs) if points is None else Course(epochs=epochs, points=points)
    with show_virtual_progress(make_console(stderr=True), variants, seeds, course.points) as tell:
        runs = train_all(
            job,
            scenario,
            variants,
            num_seeds=seeds,
            course=course,
            num_processes=processes or os.cpu_count() or 1,
            on_point=tell,
        )
    comparison = compare(runs, target)
    advice = advise(comparison) if wants_advice else []
    why = why_not_as_job(job, scenario, variants)
    notes = [f"Played by the policy simulator and not as whole jobs, because {why}."] if why else []
    if as_json:
        print_json(_as_json(runs, comparison, advice) | {"notes": notes})
    else:
        show_comparison(make_console(), comparison, advice, notes)
    if html is not None:
        says = [*advise(comparison), *notes]
        write_text(html, render_virtual_page(job.name, scenario, runs, comparison, says), "page")


def _variants(words: str | None, scenario: Scenario) -> tuple[Variant, ...]:
    from heterps.sim.variants import default_variants, parse_variants

    return default_variants(scenario) if words is None else parse_variants(words)


def _as_json(runs: list[VirtualRun], comparison: VariantComparison, advice: list[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "target": comparison.target,
        "measure": comparison.measure,
        "soonest": comparison.soonest.label if comparison.soonest else None,
        "advised": comparison.advised.label if comparison.advised else None,
        "policies": [row.as_json() for row in comparison.rows],
        "runs": [
            {"policy": run.variant.label, "seed": run.seed, "points": [asdict(point) for point in run.points]}
            for run in runs
        ],
    }
    return shown | ({"advice": advice} if advice else {})
