"""Learn from an ordinary run: correct the profile that it was predicted from, so that the next prediction is better.

inline               whole_steps of its number of threads: measured seconds of a batch over the sum of its layers
workers, without plan  overhead of the launcher: what the layers, servers and network leave of the measured seconds
by a plan            costs of the layers of each stage, as by a trial of that plan (planning/correct.py)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heterps.config import Job
from heterps.errors import ConfigError
from heterps.launch.by_plan import predict
from heterps.planning.correct import correct
from heterps.planning.inline import INLINE_JOB, layer_seconds
from heterps.planning.local import OF_JOB, ThisMachine, fit_overhead, local_prediction, one_stage
from heterps.planning.plan import Plan
from heterps.planning.trial import trial_of_run
from heterps.profiling.profile import Overhead, Profile, load_profile
from heterps.profiling.units import num_cores
from heterps.report.meaning import FINISHED

LEAST_BATCHES = 20
"""Fewest batches of a run from which something is learned: the start of a run is slower than the rest."""


def check_learns(job: Job) -> None:
    """Raise ConfigError if a job cannot correct a profile."""
    if job.profile is None:
        raise ConfigError(
            "--learn corrects the profile that a run is predicted from, and the job names none: make one with `heterps "
            "profile`, and name it with --profile."
        )
    if job.emulation is not None:
        raise ConfigError("--learn: emulated units follow the profile, so that nothing can be learned from them.")


def learn(job: Job, plan: Plan, summary: dict[str, Any]) -> str:
    """Correct the file of the job's profile by a run that has ended. Returns what was learned, in a sentence."""
    assert job.profile is not None
    batches = summary["samples"] / job.data.batch_size
    if summary["status"] not in FINISHED or batches < LEAST_BATCHES:
        return f"Nothing is learned from this run: it takes {LEAST_BATCHES} batches or more, to the end of the data."
    before = load_profile(job.profile)
    after, what = corrected(before, job, plan, summary)
    partial = Path(f"{job.profile}.partial")
    after.write(partial)
    partial.replace(job.profile)
    return f"{job.profile} is corrected by this run: {what}."


def corrected(profile: Profile, job: Job, plan: Plan, summary: dict[str, Any]) -> tuple[Profile, str]:
    """Return the profile as corrected by the summary of a run, and what has changed in it."""
    batch_size = job.data.batch_size
    batch_s = batch_size / summary["measured_throughput"]
    scaled, num_batches = profile.at_batch_size(batch_size), summary["samples"] / batch_size
    if not job.has_workers:
        told_s = plan.prediction.start_s if plan.prediction is not None else 0.0
        start_s = min(told_s, batch_s * num_batches / 2)  # of a run in which it cannot have been longer
        step_s = batch_s - start_s / num_batches
        ratio = step_s / layer_seconds(scaled, job.cluster, job.num_threads).seconds
        steps = dict(profile.whole_steps or {}) | {job.num_threads: ratio}
        overheads = dict(profile.overheads or {}) | ({INLINE_JOB: Overhead(start_s=start_s)} if start_s else {})
        changed = {"whole_steps": steps, "whole_steps_error": 0.0, "overheads": overheads or None}
        learned = profile.model_copy(update={"version": 2, **changed})
        return learned, f"a step takes {ratio:.2f} times the sum of its layers"
    if job.plan is None and (predicted := predict(job, plan)) is not None:
        alone = [one_stage(len(scaled.layers), job.cluster, k) for k in (1, 2)]
        in_rounds, free = (
            [local_prediction(scaled, job.cluster, [stage], stage.count, here).seconds for stage in alone]
            for here in (ThisMachine(num_cores(), in_rounds) for in_rounds in (True, False))
        )
        overhead = fit_overhead(scaled, job.cluster, in_rounds, free, error=0.0)
        field = "batch_s" if job.sync.in_rounds else "free_fixed_s"
        slower_s = batch_s - predicted.over(num_batches).seconds
        beside_s = max(getattr(overhead, field) + slower_s, 0.0)
        of_job = overhead.model_copy(update={field: beside_s, "start_s": predicted.start_s})
        overheads = dict(profile.overheads or {}) | {OF_JOB: of_job}
        learned = profile.model_copy(update={"version": 2, "overheads": overheads})
        return learned, f"a batch takes {beside_s * 1e3:.1f} ms besides its layers ({field})"
    measured, stages = summary["measured_throughput"], summary["stages"]
    trial = trial_of_run(plan, batch_size, measured, stages, round(num_batches), summary["seconds"])
    return correct(scaled, job.cluster, [trial]), "the layers of each stage take as long as they did"
