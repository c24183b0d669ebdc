"""A run folder read back, whether its run is finished or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps.config import Job, load_job
from heterps.errors import RunError
from heterps.planning.inline import cpu_resource
from heterps.planning.plan import Plan, load_plan
from heterps.report.meaning import UNFINISHED, bill_of, measures_in
from heterps.training.run.folder import Run

SHOWN_FIELDS = (
    "name", "status", "samples", "seconds", "samples_per_s", "metrics_of", "predicted_throughput",
    "measured_throughput", "predicted_usd", "measured_usd", "rows", "table_bytes",
)  # fmt: skip
"""Fields that every summary has; metrics, counts of missing data and the teacher may be absent."""


@dataclass(frozen=True)
class RecordedRun:
    """What a run folder holds: the job, the plan, summary.json and the lines of metrics.jsonl."""

    job: Job
    plan: Plan
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def check_is_there(folder: Path) -> None:
    """Raise RunError if there is no folder of this name."""
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such run folder. Runs are in runs/ unless --run named another place.")


def read_run(folder: Path) -> RecordedRun:
    """Reads a run folder. Without a summary, or with one older than the metrics, the metrics are summarised."""
    check_is_there(folder)
    for name in ("job.yaml", "plan.json"):
        if not (folder / name).is_file():
            raise RunError(f"{folder} is not a run: there is no {name} in it. Name a folder that `heterps train` made.")
    job, plan = load_job(folder / "job.yaml"), load_plan(folder / "plan.json")
    metrics = Run(folder).metrics()
    summary = _read_summary(folder / "summary.json")
    if summary is None or (metrics and metrics[-1]["samples"] > summary["samples"]):  # resumed, not ended again
        if not metrics:
            raise RunError(
                f"{folder} has no summary.json and no metrics yet: its run is still in its first "
                f"{job.metrics_every_samples:,} samples, or was ended there. Try again later."
            )
        summary = summarise_metrics(job, plan, metrics[-1])
    return RecordedRun(job, plan, summary, metrics)


def summarise_metrics(job: Job, plan: Plan, last: dict[str, Any]) -> dict[str, Any]:
    """The fields of summary.json for a run that has not written one, from the last line of its metrics."""
    throughput = last["samples"] / last["seconds"] if last["seconds"] else 0.0
    followed = "stages" in last and job.has_workers
    is_given = job.plan is not None and not followed  # its bill is of other machines, and this one costs its cores
    is_predicted = plan.is_predicted and not is_given
    predicted = plan.throughput
    if plan.prediction is not None:
        predicted = job.data.batch_size / plan.prediction.over(last["samples"] / job.data.batch_size).seconds
    core = job.cluster.resources[cpu_resource(job.cluster)]
    usd_per_hour = core.usd_per_hour * job.num_threads if is_given else plan.usd_per_hour(job.cluster)
    return {
        "name": job.name,
        "status": UNFINISHED,
        "samples": last["samples"],
        "seconds": last["seconds"],
        "samples_per_s": round(throughput, 1),
        "metrics_of": "interval",
        **{measure.field: last.get(measure.field) for measure in measures_in(last)},
        "predicted_throughput": round(predicted, 1) if is_predicted else None,
        "measured_throughput": round(throughput, 1),
        "predicted_usd": plan.usd if is_predicted else None,
        "measured_usd": last["usd"] if "usd" in last else usd_per_hour * last["seconds"] / 3600,
        **({"plan": bill_of(plan)} if is_given else {}),
        "rows": last["rows"],
        "table_bytes": last["table_bytes"],
        **({"launcher": job.launcher, "sync": job.sync.label} if "stages" in last else {}),
        **{name: last[name] for name in ("stages", "staleness", "emulated") if name in last},
    }


def _read_summary(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(summary, dict):
        raise _damaged(path, f"it holds a {type(summary).__name__}")
    if missing := [field for field in SHOWN_FIELDS if field not in summary]:
        raise _damaged(path, f"there is no {', '.join(missing)} in it")
    return summary


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} is damaged: {why}. Delete it: the run is then summarised from its metrics.")
