"""Every field of a job means the same under every launcher, or is refused with a sentence.

What changes training is trained with, inline and on workers: the losses are those of the other, and not those of a job
without the change. What does not is listed, so that a new field finds its place here.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from heterps.cli import main
from heterps.config import Job
from heterps.launch import train
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer

CHANGED: dict[str, Any] = {
    "model.args": {"embedding_dim": 3, "hidden": [6]},
    "data.batch_size": 20,
    "data.epochs": 2,
    "data.shuffle": False,
    "data.columns.same_ids": {"t": "s"},
    "data.columns.features": {
        "a": ["log", "standardise"],
        "t": {"cross": ["s", "u"]},
        "u": {"column": "b", "steps": [{"bucketise": 3}]},
    },
    "data.columns.labels": {"label": "mse"},
    "optimizers.sparse": {"kind": "sgd", "lr": 0.3},
    "optimizers.dense": {"kind": "adagrad", "lr": 0.1},
    "optimizers.schedule": {"kind": "step", "every": 40, "factor": 0.1},
    "optimizers.sparse_schedule": {"kind": "constant", "warmup": 50},
    "optimizers.dense_schedule": {"kind": "cosine", "until": 100},
    "optimizers.clip.norm": 0.1,
    "optimizers.clip.dense_norm": 0.1,
    "optimizers.clip.table_norm": 0.003,
    "optimizers.freeze": ["*.weight", "embedding"],
    "optimizers.groups": [{"match": "*.weight", "lr": 0.1}],
    "tables.init": {"kind": "normal", "std": 0.5},
    "tables.admission": {"kind": "sightings", "num": 3},
    "tables.eviction.max_age": 2,
    "servers.coding.values": "bf16",
    "precision": "bf16",
    "seed": 5,
}
"""Fields that change what is learned, and values that do."""

SAME: dict[str, Any] = {
    "name": "other",
    "data.prefetch": 1,
    "data.columns.id_kinds": {"s": "integer"},
    "optimizers.accumulate": 3,
    "servers.count": 2,
    "servers.cache_bytes": 1 << 20,
    "servers.retry_s": 0.5,
    "servers.faults.drop": 0.02,
    "servers.faults.double": 0.05,
    "workers.lanes": 2,
    "workers.shares": "fitted",
    "workers.in_flight": 1,
    "workers.dense": "all_reduce",
    "checkpoint.every_samples": 64,
    "validation.every_samples": 48,
    "metrics_every_samples": 32,
    "tiers.memory_bytes": 1 << 20,
}
"""Fields that change how or how often, and nothing of what is learned."""

ELSEWHERE = {
    "where data is, and what its columns are: tests/data": (
        "model.factory", "data.train", "data.test", "data.columns.label", "data.columns.num_classes",
        "data.columns.dense", "data.columns.widths", "data.columns.slots", "data.columns.dense_missing",
        "data.columns.dense_fill", "data.columns.slot_missing", "data.format.kind", "data.format.delimiter",
        "data.format.names", "data.format.quotes", "data.format.nulls", "data.format.types", "data.format.lists",
        "data.storage.endpoint", "data.storage.region", "data.storage.anonymous",
    ),
    "what a job starts from: test_start": (
        "start.model", "start.rename", "start.fresh", "start.dims", "start.rows",
    ),
    "weights of samples: tests/transparency/test_labelled_jobs": ("data.columns.weight",),
    "rankings of the test set: tests/end_to_end/test_label_jobs": ("data.columns.user", "data.columns.top_k"),
    "samples to validate with, and what follows: test_validation": (
        "data.validation.share", "data.validation.by", "data.validation.newest", "data.validation.since",
        "validation.every_minutes", "validation.metric", "validation.patience",
        "validation.keep_best", "validation.on_stop",
    ),
    "other settings of what is above: tests/ps, tests/transparency": (
        "tables.eviction.min_uses", "tables.eviction.half_life", "tables.eviction.max_bytes", "tables.eviction.order",
        "tiers.folder", "servers.coding.compression", "servers.coding.least_bytes", "servers.codings",
        "servers.faults.delay_s", "servers.faults.reorder", "servers.faults.reorder_s", "servers.faults.corrupt",
        "servers.faults.cut", "servers.faults.cut_s", "checkpoint.every_minutes", "checkpoint.keep",
    ),
    "checkpoints with changes only: tests/launch/test_delta_checkpoints": ("checkpoint.full_every",),
    "how long a save of a run that is told to end may take: test_preempted_runs": ("checkpoint.grace_s",),
    "servers that somebody else started: test_run_servers, test_secured_servers": ("servers.addresses", "servers.key"),
    "servers that wait for another coordinator; refused inline and on ray: test_killed_commands": ("servers.wait_s",),
    "mirrors of servers; refused inline: test_mirrored_servers, test_ray_servers": ("servers.replicas",),
    "how long servers may be silent: test_silent_servers, test_ray_servers": ("servers.silence_s",),
    "how long others are waited for: test_ends_of_runs, test_restarted_runs": (
        "servers.deadline_s", "workers.deadline_s", "workers.replacements", "workers.backoff_s", "workers.restarts",
    ),
    "rows that may be stale: below": ("servers.staleness",),
    "what happens when training diverges: tests/end_to_end/test_diverged_runs": ("on_divergence",),
    "batches that are not finite: tests/end_to_end/test_skipped_batches": ("on_not_finite",),
    "who is kept in step, and how: tests/transparency; one worker always is": ("sync",),
    "values between stages: an inline run has one": ("workers.values",),
    "how processes are reached; refused on ray, below": ("workers.channel", "servers.channel"),
    "units that are not here; refused inline, below": ("emulation.scale",),
    "where and at what price: test_launch, tests/planning": (
        "cluster.resources", "cluster.server_resource", "cluster.machines",
        "cluster.egress_usd_per_gb", "profile", "plan", "launcher",
        "ray_address", "threads",
    ),
}  # fmt: skip


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        inner = [arg for arg in (kind, *typing.get_args(kind)) if isinstance(arg, type) and issubclass(arg, BaseModel)]
        if len(inner) == 1 and typing.get_origin(kind) not in (dict, tuple):
            yield from leaves(inner[0], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_field_of_a_job_is_here() -> None:
    here = [*CHANGED, *SAME, *(field for fields in ELSEWHERE.values() for field in fields)]
    assert len(here) == len(set(here))
    assert set(here) == set(leaves(Job))


def changed(job: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    first, _, rest = field.partition(".")
    return {**job, first: changed(job.get(first) or {}, rest, value) if rest else value}


class Losses(Observer):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        self.losses.append(loss)


def losses_of(job_file: Path, launcher: str, field: str | None, value: Any, name: str) -> list[float]:
    """Inline on one thread, or on two workers, which are threads of this process."""
    job = yaml.safe_load(job_file.read_text()) | {"launcher": launcher}
    if launcher == "local":
        job |= {"workers": {"channel": "memory"}, "threads": 2}
    if field is not None:
        job = changed(job, field, value)
    if "validation" in job:
        job["data"]["validation"] = job["data"]["test"]
    if "servers" in job:
        job["servers"]["channel"] = "memory"
    watch = Losses()
    train(Job.model_validate(job), job_file.parent / name, observer=watch)
    return watch.losses


@pytest.fixture(scope="module")
def usual() -> dict[str, list[float]]:
    """The losses of the job as it is, kept once they are known."""
    return {}


@pytest.mark.parametrize("field", [*CHANGED, *SAME])
def test_a_field_means_the_same_inline_and_on_workers(
    tiny_job: Path, usual: dict[str, list[float]], field: str
) -> None:
    if not usual:
        usual["losses"] = losses_of(tiny_job, "inline", None, None, "usual")
    value = (CHANGED | SAME)[field]
    if field.startswith("tiers"):
        value = 1 << 20
    inline = losses_of(tiny_job, "inline", field, value, "inline")
    local = losses_of(tiny_job, "local", field, value, "local")
    rel = 0.01 if value == "bf16" else 1e-5  # gradients of each worker are rounded for itself
    assert local == pytest.approx(inline, rel=rel)
    if field in SAME:
        assert inline == pytest.approx(usual["losses"], rel=1e-5)
    else:
        assert inline != pytest.approx(usual["losses"], rel=1e-6)


@pytest.mark.parametrize("launcher", ["inline", "local"])
@pytest.mark.parametrize("sync", ["bsp", "ssp:2"])
def test_copies_of_hot_rows_are_used_again_within_the_bound(tiny_job: Path, launcher: str, sync: str) -> None:
    def lines(staleness: int) -> list[dict[str, Any]]:
        job = yaml.safe_load(tiny_job.read_text()) | {"launcher": launcher, "sync": sync}
        job |= {"servers": {"channel": "memory", "staleness": staleness}, "workers": {"channel": "memory", "lanes": 1}}
        run = tiny_job.parent / f"run-{staleness}"
        train(Job.model_validate(job), run)
        return Run(run).metrics()

    assert "cache" not in lines(0)[-1]
    last = lines(2)[-1]
    assert 0 < last["cache"]["hit_rate"] < 1
    assert last["traffic"]["bytes_sent"] >= 0


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"launcher": "inline", "emulation": {}}, "which the inline launcher has not: use --launcher local"),
        ({"launcher": "ray", "workers": {"channel": "memory"}}, "cannot be on a Ray cluster"),
        ({"launcher": "ray", "servers": {"channel": "memory"}}, "cannot be on a Ray cluster"),
        ({"launcher": "local", "sync": "bsp+backup:1"}, "backup workers are for `heterps simulate`"),
        ({"launcher": "inline", "sync": "bsp+backup:1"}, "backup workers are for `heterps simulate`"),
    ],
)
def test_what_a_launcher_cannot_honour_is_refused_by_the_command(
    tiny_job: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], sentence: str
) -> None:
    tiny_job.write_text(yaml.safe_dump(yaml.safe_load(tiny_job.read_text()) | fields))
    with pytest.raises(SystemExit) as ended:
        main(["train", str(tiny_job), "--run", "run"])
    assert ended.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
