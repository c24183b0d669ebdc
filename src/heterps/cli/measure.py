"""`heterps plan --measure`: the plan that was best in short trials, beside what was predicted for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps.cli.output import check_folders, print_json, write_file
from heterps.cli.plan_variants import whole_numbers
from heterps.cli.train import EXIT_CODES
from heterps.config import Job, PolicyConfig, load_cluster, load_job
from heterps.config.policy_words import parse_policy
from heterps.errors import ConfigError
from heterps.report.terminal.consoles import make_console
from heterps.yamlfile import validate

if TYPE_CHECKING:
    from heterps.planning.cost import Problem
    from heterps.planning.plan import Plan


def measure_plans(
    job_file: Path,
    profile: Path | None,
    cluster: Path | None,
    *,
    throughput: float | None,
    samples: float | None,
    epochs: float | None,
    sync: str | None,
    lanes: str | None,
    rows: float | None,
    rows_in_memory: float | None,
    deadline: float | None,
    launcher: str | None,
    emulate: bool,
    trials: int,
    trial_seconds: float,
    out: Path | None,
    profile_out: Path | None,
    json: bool,
    **search: Any,
) -> int:
    """Runs short trials of the plans of a job, prints what they gave, and returns the exit code."""
    from heterps.launch.trials import TrialRunner, trial_job
    from heterps.planning.online import measure
    from heterps.report.terminal.plan_table import draw_units
    from heterps.report.terminal.progress import show_progress
    from heterps.report.terminal.trials_table import show_trials, trials_as_json

    check_folders(plan=out, profile=profile_out)
    job = load_job(job_file)
    problem, job = _problem(
        job, job_file, profile, cluster, throughput, samples, epochs, sync,
        lanes=whole_numbers("--lanes", lanes), rows=rows, rows_in_memory=rows_in_memory, deadline=deadline,
    )  # fmt: skip
    job = trial_job(job, launcher=launcher, emulate=emulate)
    _check_devices(job, problem)
    with show_progress(make_console(stderr=True), "trial") as announce:

        def on_trial(number: int, plan: Plan) -> None:
            announce(f"{number} of {trials}: {draw_units(plan)}, predicted {plan.throughput:,.0f} samples/s")

        found = measure(problem, TrialRunner(job, trial_seconds), trials=trials, on_trial=on_trial, **search)
    if json:
        print_json(trials_as_json(found))
    else:
        show_trials(make_console(), found, problem.profile, problem.throughput)
    write_file(out, "plan", found.plan.write)
    write_file(profile_out, "profile", found.profile.write)
    return EXIT_CODES.get(found.stopped_by or "", 0)


def _problem(
    job: Job,
    job_file: Path,
    profile: Path | None,
    cluster: Path | None,
    throughput: float | None,
    samples: float | None,
    epochs: float | None,
    sync: str | None,
    **asked: Any,
) -> tuple[Problem, Job]:
    """What is planned, and the job with what the options say; what no option says comes from the job."""
    from heterps.data.reader import open_reader
    from heterps.model.build import build_model
    from heterps.model.trace import trace
    from heterps.planning.api import make_problem
    from heterps.planning.optimum import without_reached
    from heterps.profiling.profile import ProfiledJob, load_profile

    if sync is not None:
        job = _with_policy(job, parse_policy(sync))
    if asked["lanes"] is not None and not job.sync.in_rounds:
        raise ConfigError("--lanes is for --sync bsp: other policies take whole batches.")
    if cluster is not None:
        job = job.model_copy(update={"cluster": load_cluster(cluster)})
    path = str(profile) if profile is not None else job.profile
    if path is None:
        raise ConfigError(
            f"{job_file}: trials begin with plans of a profile, and the job names none. Make one with `heterps profile "
            f"{job_file} --out profile.json`, then `heterps plan profile.json --measure {job_file}`."
        )
    if job.profile is None:
        job = job.model_copy(update={"profile": path})
    profiled = load_profile(path).model_copy(update={"job": ProfiledJob.of(job)})
    layers = [layer.name for layer in trace(build_model(job.model, job.data.columns, job.seed)).layers]
    if layers != [layer.name for layer in profiled.layers]:
        raise ConfigError(f"{path}: this is a profile of another model than {job_file} trains. Profile that one.")
    num_rows = open_reader(job).num_rows
    is_real = sync is not None or job.cluster.has_facts or any(value is not None for value in asked.values())
    problem = make_problem(
        profiled.at_batch_size(job.data.batch_size),
        job.cluster,
        throughput,
        samples if samples is not None else num_rows,
        epochs if epochs is not None else job.data.epochs,
        cost="real" if is_real else "paper",
        sync=job.sync if is_real else None,
        **asked,
    )
    return without_reached(problem), job  # trials find that share themselves


def _with_policy(job: Job, policy: PolicyConfig) -> Job:
    """The job with another policy. Raises ConfigError if other settings of the job contradict it."""
    return validate(job.model_dump() | {"sync": policy.model_dump()}, Job, where=f"job with --sync {policy.label}")


def _check_devices(job: Job, problem: Problem) -> None:
    """Raises ConfigError where a plan may need devices that are not here, before any time is spent."""
    from heterps.training.protocol.emulation import lacks_devices

    usable = [name for name in problem.resources if any(name in layer.costs for layer in problem.profile.layers)]
    if missing := lacks_devices(job, usable):
        raise ConfigError(
            f"plans may run on {', '.join(missing)}, and this machine has no such device. Emulate it with --emulate "
            "(or `emulation: {}` in the job), or set its limit in the cluster to 0."
        )
