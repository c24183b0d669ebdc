"""The result of a run as the plain values of summary.json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from heterps.config import Job
from heterps.data.generate import find_dataset_info
from heterps.planning.plan import Plan
from heterps.planning.prediction import TERMS, Prediction
from heterps.report.meaning import COMPLETED, DIVERGED, STOPPED_EARLY, bill_of
from heterps.report.stage_figures import DOINGS, bottleneck
from heterps.training.run.observer import Outcome

OF_STAGES = ("stages", "max_lead", "servers_busy", "cache", "traffic", "emulated")
"""Fields of summary.json that the coordinator has counted, where there is something to count."""


def summarise(
    job: Job,
    plan: Plan,
    outcome: Outcome,
    predicted: Prediction | None = None,
    given: Plan | None = None,
    in_rounds: float | None = None,
) -> dict[str, Any]:
    """The fields of summary.json. Metrics are of the test set; without one, of the best validation; without that, of
    the training stream.

    plan       the plan that the run followed
    predicted  what the run was predicted to do on the machine that it had; None: what the plan says of its units
    given      a plan for other machines than those of the run; its bill stands in the summary
    in_rounds  throughput of the plan where batches wait for each other, if that applies and is known
    """
    if predicted is not None:
        predicted = predicted.over(outcome.samples / job.data.batch_size)
        plan = plan.model_copy(update={"throughput": job.data.batch_size / predicted.seconds})
    tested, validation = outcome.test is not None, outcome.validation
    if outcome.test is not None:
        of, figures = "test", outcome.test.fields()
    elif validation is not None:
        of, figures = "validation", {name: value for name, value in validation["best"].items() if name != "samples"}
    else:
        of, figures = "train", outcome.train.fields()
    staged = outcome.staged
    throughput = outcome.samples / outcome.seconds if outcome.seconds else 0.0
    return {
        "name": job.name,
        "status": _status(outcome),
        "samples": outcome.samples,
        "seconds": round(outcome.seconds, 3),
        "samples_per_s": round(throughput, 1),
        "epochs": outcome.epochs,
        "metrics_of": of,
        **figures,
        "train": outcome.train.fields(),
        **({"validation": validation} if validation is not None else {}),
        "own_loss": outcome.has_own_loss,
        **_teacher(job, tested),
        "predicted_throughput": round(plan.throughput, 1) if plan.is_predicted else None,
        **_interval_and_terms(job, predicted, staged, throughput),
        **({"predicted_in_rounds": round(in_rounds, 1)} if in_rounds is not None else {}),
        "measured_throughput": round(throughput, 1),
        "predicted_usd": _predicted_usd(job, plan, outcome),
        "measured_usd": staged["usd"],
        **_not_measured(job, plan),
        **({"plan": bill_of(given)} if given is not None else {}),
        "staleness": staged["staleness"],
        "restarts": outcome.restarts,
        "recoveries": outcome.recoveries,
        "repeated_samples": outcome.repeated_samples,
        "skipped_batches": outcome.skipped_batches,
        "skipped_samples": outcome.skipped_samples,
        "rows": outcome.num_rows,
        "table_bytes": outcome.table_bytes,
        "tables": outcome.counters._asdict(),
        **({"tiers": asdict(outcome.tiers)} if outcome.tiers is not None else {}),
        **({"data": outcome.counts} if outcome.counts else {}),
        "launcher": job.launcher,
        "sync": job.sync.label,
        **{name: staged[name] for name in OF_STAGES if name in staged},
    }


def _interval_and_terms(
    job: Job, predicted: Prediction | None, staged: dict[str, Any], throughput: float
) -> dict[str, Any]:
    """The interval of the predicted throughput, and the seconds of a batch by term: as predicted and as measured."""
    if predicted is None or not throughput:
        return {}
    _, low, high = predicted.throughput(job.data.batch_size)
    measured = _measured_terms(staged, job.data.batch_size / throughput, has_workers=job.has_workers)
    terms = predicted.model_dump(include=set(TERMS))
    return {
        "predicted_throughput_low": round(low, 1),
        "predicted_throughput_high": round(high, 1),
        "predicted_by": predicted.basis,
        "predicted_terms": {name: round(seconds, 6) for name, seconds in terms.items()},
        "measured_terms": {name: round(seconds, 6) for name, seconds in measured.items()},
    }


def _measured_terms(staged: dict[str, Any], batch_s: float, *, has_workers: bool) -> dict[str, float]:
    """The seconds of a batch by term, which add up, of the workers of the stage that waits least.

    Whatever a worker does, the servers' work counts as theirs, and the rest of its communication as the network's; what
    is left are go-aheads, reading and waiting for other workers. One process does not tell its tables from its layers.
    """
    stages = staged["stages"]
    stage = stages[bottleneck(stages) or 0]
    compute_s, communicate_s, wait_s = ((stage[doing] or 0.0) * batch_s for doing in DOINGS)
    if not has_workers:
        return {"compute_s": compute_s + communicate_s, "overhead_s": wait_s}
    if (busy := staged.get("servers_busy")) is None:
        return {"compute_s": compute_s, "network_s": communicate_s, "overhead_s": wait_s}
    servers_s = min(busy * batch_s, communicate_s + wait_s)
    network_s = max(communicate_s - servers_s, 0.0)
    overhead_s = communicate_s + wait_s - servers_s - network_s
    return {"compute_s": compute_s, "servers_s": servers_s, "network_s": network_s, "overhead_s": overhead_s}


def _status(outcome: Outcome) -> str:
    if outcome.stopped_by:
        return f"stopped by {outcome.stopped_by}"
    if outcome.has_diverged:
        return DIVERGED
    return STOPPED_EARLY if outcome.validation is not None and outcome.validation["stopped_early"] else COMPLETED


def _predicted_usd(job: Job, plan: Plan, outcome: Outcome) -> float | None:
    """Predicted cost of the whole job; of a plan that is followed, the cost of the samples trained on."""
    if not plan.is_predicted:
        return None
    if not job.has_workers:
        return plan.usd
    return plan.usd_per_hour(job.cluster) * outcome.samples / plan.throughput / 3600


def _not_measured(job: Job, plan: Plan) -> dict[str, Any]:
    """Names what the cluster is paid for and a run does not see: it knows its units and its seconds, and no bill."""
    if not job.has_workers:
        return {}
    cluster = job.cluster
    names = list(plan.units)
    sold = [*cluster.resources.values(), *cluster.machines.values()]
    left_out = {
        "traffic between zones": any(cluster.egress_price(one, other) > 0 for one in names for other in names),
        "disks of servers": cluster.resources[plan.servers.resource].disk_usd_per_gb_hour > 0,
        "start-up and billing steps": any(one.startup_s or one.billing_s or one.minimum_s for one in sold),
    }
    named = [name for name, is_paid in left_out.items() if is_paid]
    return {"measured_usd_without": named} if named else {}


def _teacher(job: Job, tested: bool) -> dict[str, float | None]:
    """The AUC or RMSE that no model can beat on this data: known where the data is synthetic."""
    source = job.data.test if tested else job.data.train
    info = find_dataset_info(source) if source is not None else None
    split = info and (info.test if tested else info.train)
    auc, rmse = (split.teacher_auc, split.teacher_rmse) if split else (None, None)
    known: dict[str, float | None] = {"teacher_auc": None if auc is None else round(auc, 6)}
    return known if rmse is None else {**known, "teacher_rmse": round(rmse, 6)}
