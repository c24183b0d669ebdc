"""What a launcher costs besides layers and servers, measured once per machine with a model that computes hardly at all.

    one worker, in rounds             T1 = batch_s
    two workers, in rounds            T2 = batch_s + worker_s
    two stages of one worker each     T3 = batch_s + worker_s + message_s * (a message there and back for each lane)
    one and two workers, not waiting  T4 = free_fixed_s + free_divided_s    T5 = free_fixed_s + free_divided_s / 2
    two stages, not waiting           T6 = T5 + free_message_s * 2
    all of them                       start_s = what the first batches took more than the others, at least

The figures are kept in `overheads.json` of the user's cache folder, because they belong to the machine and to the
code that trains, not to a model: after a change of that code they are measured anew. A real job costs more than an
empty one and its layers: where its data is at hand, short trials of the job itself tell how much.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import heterps
from heterps.config import ASP, BSP, Cluster, Data, Job, Model, Resource, Schema
from heterps.config.launchers import LAUNCHERS
from heterps.data.cache import cache_folder
from heterps.data.generate import generate
from heterps.launch.trials import interval_of, run_trial, trial_job
from heterps.launch.whole_steps import step_seconds
from heterps.planning.inline import inline_prediction
from heterps.planning.local import OF_JOB, fit_overhead, one_stage, two_stages
from heterps.planning.plan import Plan, PlannedServers
from heterps.planning.trial import Trial
from heterps.profiling.profile import Overhead, Profile
from heterps.profiling.units import num_cores
from heterps.temporary import temporary_folder
from heterps.training.protocol.layout import job_layout
from heterps.yamlfile import validate

ENGINE = ("checkpoint", "data", "launch", "model", "nn", "ps", "sync", "training", "wire")
"""Packages of heterps whose code a run spends its time in."""
ROWS, BATCH_SIZE, SECONDS, JOB_SECONDS = 4096, 64, 1.5, 3.0
NUM_LAYERS = 5
"""Number of layers of the empty model: embedding, cat, linear, relu, logit."""
ERROR = 0.05
"""Relative error of the seconds of a batch that short trials have shown."""
CLUSTER = Cluster(resources={"cpu": Resource(device="cpu", usd_per_hour=0.04, limit=3)}, server_resource="cpu")


def with_overhead(profile: Profile, launcher: str, job: Job | None = None) -> Profile:
    """Return the profile with the overhead of a launcher, from the cache or measured now, which takes a minute.

    The overhead of an inline run is always added: it is what real steps in one process contain already. With a `job`
    whose data can be read, short trials of the job itself on local processes are added (OF_JOB).
    """
    if not LAUNCHERS[launcher].is_measured:
        return profile
    known = dict(profile.overheads or {}) | {one: overhead(one) for one in dict.fromkeys(("inline", launcher))}
    found = profile.model_copy(update={"version": 2, "overheads": known})
    if job is None or job.emulation is not None or not LAUNCHERS[launcher].has_workers:
        return found
    scaled, num_layers = found.at_batch_size(job.data.batch_size), len(found.layers)
    counts = [[1], [2], [1, 1]] if num_layers > 1 else [[1], [2]]
    interval = interval_of(job, inline_prediction(scaled, job.cluster, 1).seconds)
    trials = [
        [_try(job.model_copy(update={"sync": sync}), stages, interval, num_layers, JOB_SECONDS) for stages in counts]
        for sync in (BSP(), ASP())
    ]
    in_rounds, free = ([_batch_s(job, trial) for trial in of_policy] for of_policy in trials)
    start_s = _start_s([trial for of_policy in trials for trial in of_policy])
    known[OF_JOB] = fit_overhead(scaled, job.cluster, in_rounds, free, ERROR, _lanes(job, num_layers), start_s)
    return found.model_copy(update={"overheads": known})


def overhead(launcher: str) -> Overhead:
    """Return the overhead of a launcher on this machine. A cache that cannot be read or written is done without."""
    key = f"{launcher}, heterps {heterps.__version__}, engine {engine_digest()}, {num_cores()} cores"
    known = _cached()
    kept = known.get(key)
    if isinstance(kept, dict) and kept.keys() == Overhead.model_fields.keys():  # else it is of another version
        return validate(kept, Overhead, where=str(cache_file()))
    found = _measure(launcher)
    try:
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**known, key: found.model_dump()}, indent=1)
        cache_file().write_text(text + "\n", encoding="utf-8")
    except OSError:
        pass  # it is measured again next time
    return found


@functools.cache
def engine_digest(package: Path = Path(heterps.__file__).parent) -> str:
    """Return a digest of the code of ENGINE: a figure that was measured with another one does not hold."""
    files = sorted(path for name in ENGINE for path in (package / name).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(package).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def cache_file() -> Path:
    """Return the file where overheads are kept: overheads.json in the user's cache folder."""
    return cache_folder() / "overheads.json"


def _cached() -> dict[str, Any]:
    try:
        found = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _measure(launcher: str) -> Overhead:
    with temporary_folder("overhead-") as folder:
        generate(folder / "data", ROWS, 0, 0)
        job = _empty_job(folder / "data" / "train", launcher)
        if not job.has_workers:
            steps = step_seconds(job, SECONDS)
            return Overhead(batch_s=steps.seconds, start_s=steps.start_s, error=steps.error)
        free = job.model_copy(update={"sync": ASP()})
        interval = interval_of(job, overhead("inline").batch_s)
        trials = [_try(one, counts, interval) for one in (job, free) for counts in ([1], [2], [1, 1])]
        one_s, two_s, border_s, free_one_s, free_two_s, free_border_s = (_batch_s(job, trial) for trial in trials)
        divided_s = min(max(2 * (free_one_s - free_two_s), 0.0), free_one_s)
        return Overhead(
            batch_s=one_s,
            worker_s=max(two_s - one_s, 0.0),
            message_s=max(border_s - max(two_s, one_s), 0.0) / (2 * _lanes(job, NUM_LAYERS)),
            free_message_s=max(free_border_s - min(free_one_s, free_two_s), 0.0) / 2,
            free_fixed_s=free_one_s - divided_s,
            free_divided_s=divided_s,
            start_s=_start_s(trials),
            error=ERROR,
        )


def _empty_job(data: Path, launcher: str) -> Job:
    """A job whose model has one slot with vectors of one number, and a single layer besides."""
    return Job(
        model=Model(factory="ctr_dnn", args={"embedding_dim": 1, "hidden": [1]}),
        data=Data(train=str(data), batch_size=BATCH_SIZE, columns=Schema(dense=("I1",), slots=("C1",))),
        cluster=CLUSTER,
        launcher=launcher,
        threads=1,
    )


def _try(
    job: Job, counts: Sequence[int], interval: int, num_layers: int = NUM_LAYERS, seconds: float | None = None
) -> Trial:
    """Run a trial with these numbers of workers in the stages, and a line of metrics after every `interval` batches."""
    plan = _plan(counts, num_layers, job.cluster)
    given = trial_job(job, launcher="local")
    return run_trial(given, plan, seconds=SECONDS if seconds is None else seconds, interval=interval)


def _batch_s(job: Job, trial: Trial) -> float:
    """Return the seconds of a batch of a trial."""
    return job.data.batch_size / trial.throughput


def _start_s(trials: Sequence[Trial]) -> float:
    """Return the seconds by which the start of a run is slower: the least, for a busy machine only adds to it."""
    return min(trial.start_s for trial in trials)


def _lanes(job: Job, num_layers: int) -> int:
    """Number of micro-batches of a batch that passes two stages in rounds; 0 if one layer cannot be cut."""
    if num_layers == 1:
        return 0
    in_rounds = job.model_copy(update={"sync": BSP(), "launcher": "local"})
    return job_layout(in_rounds, _plan([1, 1], num_layers, job.cluster)).num_lanes


def _plan(counts: Sequence[int], num_layers: int, cluster: Cluster) -> Plan:
    """A plan of all layers in one stage with this number of workers, or of two stages of one each."""
    stages = two_stages(num_layers, cluster) if len(counts) > 1 else [one_stage(num_layers, cluster, counts[0])]
    servers = PlannedServers(resource=cluster.server_resource, count=1)
    return Plan(
        method="overhead", stages=tuple(stages), servers=servers, throughput=0, hours=0, usd=0, bottleneck="unknown"
    )
