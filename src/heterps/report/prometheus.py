"""What Prometheus is told of runs: whether each runs, how far it is, how fast, how stale, at what cost, how safe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.core import GaugeMetricFamily

from heterps.ps.server.stats import ServerStats
from heterps.report.exposition import text_of
from heterps.report.prometheus_servers import ServerFacts, server_families
from heterps.report.stage_figures import DOINGS
from heterps.report.traffic import KINDS, SAVED, Traffic, traffic_of

__all__ = ["CONTENT_TYPE", "NAMES", "RunFacts", "exposition"]


@dataclass(frozen=True)
class RunFacts:
    """A run as monitoring sees it. `status` is what `heterps status --json` prints; None where its job does not answer.

    checkpoint_age_s  seconds since its last checkpoint was finished; None: there is none
    free_bytes        that are free where it is written; None: not known
    servers           its servers; none where it has none, or they did not say how they stand
    """

    name: str
    is_running: bool
    status: dict[str, Any] | None
    checkpoint_age_s: float | None
    free_bytes: int | None
    servers: Sequence[ServerStats] = ()


OF_JOBS = {
    "heterps_job_samples": ("samples", "Samples that were trained on."),
    "heterps_job_samples_planned": ("total", "Samples of the whole job."),
    "heterps_job_seconds": ("seconds", "Seconds of training so far."),
    "heterps_job_usd": ("usd", "Cost so far."),
    "heterps_job_usd_per_hour": ("usd_per_hour", "What the units that run cost an hour."),
    "heterps_job_staleness": ("staleness", "Updates between a pull and its push, in the open interval."),
    "heterps_job_restarts": ("restarts", "Starts of the job after its first."),
    "heterps_job_recoveries": ("recoveries", "Workers and servers that were lost and replaced while the job went on."),
    "heterps_job_skipped_batches": (
        "skipped_batches",
        "Batches that were skipped because their loss or gradients were not finite.",
    ),
    "heterps_job_silence_seconds": ("silence_s", "Seconds since the worker that is silent longest told anything."),
    "heterps_job_auc": ("auc", "AUC of the open interval."),
    "heterps_job_log_loss": ("log_loss", "Log loss of the open interval."),
}
"""The field of a job's status, and what it means, by the name of the metric."""
OF_STAGES = {
    "heterps_stage_samples_per_second": ("samples_per_s", "Samples a second of a stage."),
    "heterps_stage_workers": ("workers", "Workers of a stage."),
    "heterps_stage_queue": ("queue", "Micro-batches that wait for a worker of a stage."),
}
RUNNING = "heterps_job_running"
ANSWERS = "heterps_job_answers"
TIME = "heterps_stage_time_share"
AGE = "heterps_checkpoint_age_seconds"
FREE = "heterps_disk_free_bytes"
TRAFFIC = "heterps_traffic_bytes"
SAVED_TRAFFIC = "heterps_traffic_saved_bytes"
OF_TRAFFIC = {
    "heterps_traffic_calls": ("calls", "Calls of workers to servers, one for each server."),
    "heterps_traffic_requests": ("requests", "Messages in which these calls went: the others were merged."),
    "heterps_traffic_retries": ("retries", "Requests that were sent again, as no answer came in time."),
}
"""The field of `traffic` in a job's status, and what it means, by the name of the metric."""
NAMES = (RUNNING, ANSWERS, *OF_JOBS, *OF_STAGES, TIME, TRAFFIC, SAVED_TRAFFIC, *OF_TRAFFIC, AGE, FREE)
"""All names, for dashboards to be checked against."""


def exposition(runs: Sequence[RunFacts]) -> bytes:
    """Return the text that Prometheus reads. Runs that are over are told only as not running."""
    servers = [ServerFacts(stats, run=run.name) for run in runs if run.is_running for stats in run.servers]
    return text_of([*_families(runs), *server_families(servers)])


def _families(runs: Sequence[RunFacts]) -> Iterator[GaugeMetricFamily]:
    live = [run for run in runs if run.is_running]
    yield _family(RUNNING, "1 while the job of a run runs.", ((run.name, run.is_running) for run in runs))
    yield _family(ANSWERS, "1 if the job said how it stands.", ((r.name, r.status is not None) for r in live))
    for name, (field, meaning) in OF_JOBS.items():
        yield _family(name, meaning, ((run.name, (run.status or {}).get(field)) for run in live))
    stages = [
        ((run.name, str(number + 1), stage["resource"]), stage)
        for run in live
        for number, stage in enumerate((run.status or {}).get("stages") or ())
    ]
    for name, (field, meaning) in OF_STAGES.items():
        family = GaugeMetricFamily(name, meaning, labels=["run", "stage", "resource"])
        for labels, stage in stages:
            if stage.get(field) is not None:
                family.add_metric(labels, stage[field])
        yield family
    shares = GaugeMetricFamily(TIME, "Share of a stage's time, by what it did.", labels=["run", "stage", "doing"])
    for (run_name, number, _), stage in stages:
        for doing in DOINGS:
            if stage.get(doing) is not None:
                shares.add_metric([run_name, number, doing], stage[doing])
    yield shares
    yield from _traffic([(run.name, traffic) for run in live if (traffic := traffic_of(run.status or {}))])
    yield _family(AGE, "Seconds since the last checkpoint.", ((r.name, r.checkpoint_age_s) for r in live))
    yield _family(FREE, "Bytes that are free where a run is written.", ((run.name, run.free_bytes) for run in live))


def _traffic(runs: Sequence[tuple[str, Traffic]]) -> Iterator[GaugeMetricFamily]:
    """Bytes between the processes of runs: by kind, and what was saved by which means."""
    by_kind = GaugeMetricFamily(TRAFFIC, "Bytes of a job's workers since its start, by kind.", labels=["run", "kind"])
    by_means = GaugeMetricFamily(SAVED_TRAFFIC, "Bytes that did not travel, by what saved them.", labels=["run", "by"])
    for run, traffic in runs:
        for field in KINDS:
            by_kind.add_metric([run, field.removesuffix("_bytes")], traffic.get(field, 0))
        for field in SAVED:
            by_means.add_metric([run, field.removesuffix("_saved_bytes")], traffic.get(field, 0))
    yield from (by_kind, by_means)
    for name, (field, meaning) in OF_TRAFFIC.items():
        yield _family(name, meaning, ((run, traffic.get(field)) for run, traffic in runs))


def _family(name: str, meaning: str, values: Iterable[tuple[str, float | None]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=["run"])
    for run, value in values:
        if value is not None:
            family.add_metric([run], float(value))
    return family
