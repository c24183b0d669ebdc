"""Where processes run. `train` starts a job on the launcher that it names, and leaves a complete run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps.config import Job, load_job
from heterps.data.sources import open_dataset
from heterps.launch.inline import train_inline
from heterps.planning.inline import cpu_resource, inline_plan
from heterps.planning.plan import Plan
from heterps.profiling.catalogue import LOCAL
from heterps.profiling.job import profile_job
from heterps.profiling.profile import load_profile
from heterps.report.html import render_run
from heterps.report.summary import summarise
from heterps.training.loop import Observer
from heterps.training.run import Run, choose_folder

QUICK_PROFILE_S = 1.0
"""What a run without a profile spends on one, so that every run can be compared with its prediction."""


@dataclass(frozen=True)
class FinishedRun:
    folder: Path
    summary: dict[str, Any]


def train(
    job: Job | str | Path,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    observer: Observer | None = None,
) -> FinishedRun:
    """Train `job` (or the job in that file) and write its run folder, by default `runs/<name>-<number>`."""
    if not isinstance(job, Job):
        job = load_job(job)
    num_samples = open_dataset(job.data.train).num_rows * job.data.epochs  # bad data is found before a folder is made
    plan = _plan(job, num_samples)
    run = Run(Path(folder) if folder is not None else choose_folder(job, resume=resume))
    if resume:
        run.resume(job)
    else:
        run.create(job)
    run.write("plan.json", plan.model_dump_json(indent=1, exclude_none=True) + "\n")
    outcome = train_inline(job, run, resume=resume, observer=observer or Observer())
    summary = summarise(job, plan, outcome)
    run.write_json("summary.json", summary)
    run.write("report.html", render_run(job, plan, summary, run.metrics()))
    return FinishedRun(run.folder, summary)


def _plan(job: Job, num_samples: int) -> Plan:
    """What this machine is predicted to do with the job."""
    if job.profile is not None:
        profile = load_profile(job.profile)
    else:
        profile = profile_job(job, [f"{cpu_resource(job.cluster)}={LOCAL}"], budget_s=QUICK_PROFILE_S)
    return inline_plan(profile, job.cluster, num_cores=job.num_threads, samples=num_samples)
