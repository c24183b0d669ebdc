"""One job in one process and by plans, and what must be equal: the loss of every step, rows and dense parameters.

train(job) ----------------------> Trained: losses, tables, summary of a checkpoint
train(job, counts, cuts, ...) ---> Trained, of the same steps on workers and servers     same(one, other)
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from zoo_cases import CASES

from heterps.checkpoint import Snapshot, load_latest
from heterps.config import Job, Schema
from heterps.launch.by_plan import train_once
from heterps.model import build_model
from heterps.model.trace import trace
from heterps.planning.inline import unpredicted_plan
from heterps.planning.plan import Plan, PlannedServers, Stage
from heterps.training.run.folder import Run
from heterps.training.run.observer import Observer, Outcome

LOSS_RTOL, TABLE_RTOL = 1e-6, 1e-5
"""Of the loss of a step; and of the values of a table, by the largest of them: sums of float32 in another order differ
in their last bits, and optimizers that divide by small numbers make more of it where a value is near zero."""
CLUSTER = {
    "resources": {
        "cpu": {"device": "cpu", "usd_per_hour": 0.04, "limit": 99},
        "big": {"device": "cpu", "usd_per_hour": 1.0, "limit": 99},
    },
    "server_resource": "cpu",
}


def write_data(path: Path, schema: Schema, num_rows: int, seed: int = 0, **columns: Sequence[object]) -> None:
    """Samples with something to learn from their first slot, or their first number; `columns` replace some."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, 30, (num_rows, len(schema.slots)))
    table: dict[str, object] = {name: ids[:, number] for number, name in enumerate(schema.slots)}
    for name in schema.dense:
        values = random.standard_normal((num_rows, schema.width_of(name))).astype(np.float32)
        table[name] = list(values) if name in schema.widths else values[:, 0]
    first = ids[:, 0] if schema.slots else random.integers(0, 1 << 20, num_rows)
    for name, label in schema.all_labels.items():
        table[name] = first % min(int(min(label.range.highest, 4)) + 1, 5)
    pq.write_table(pa.table({**table, **columns}), path, row_group_size=max(num_rows // 5, 1))


def make_job(name: str, data: Path, batch_size: int = 24, **more: Any) -> Job:
    """Of a small model of the zoo, on data of `write_data`."""
    schema, args = CASES[name]
    fields: dict[str, Any] = {
        "name": name,
        "model": {"factory": name, "args": args},
        "data": {"train": str(data), "columns": schema.model_dump(), "batch_size": batch_size},
        "cluster": CLUSTER,
        "threads": 1,
        "metrics_every_samples": batch_size,
    }
    return changed(Job.model_validate(fields), **more)


def changed(job: Job, **fields: Any) -> Job:
    """The job with other fields; those that are mappings are changed inside, unless they are of another kind."""
    return Job.model_validate(_merged(job.model_dump(), fields))


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    if "kind" in new or "factory" in new:
        return dict(new)
    both = {
        k: _merged(old[k], v) if isinstance(v, dict) and isinstance(old.get(k), dict) else v for k, v in new.items()
    }
    return {**old, **both}


def num_layers(job: Job) -> int:
    return len(trace(build_model(job.model, job.data.columns, job.seed)).layers)


def make_plan(job: Job, counts: Sequence[int], cuts: Sequence[int] = (), servers: int = 1) -> Plan:
    """Stages of so many workers each, of which all but the first begin at the layers `cuts`, on two resources."""
    layers = trace(build_model(job.model, job.data.columns, job.seed)).layers
    firsts, lasts = [0, *cuts], [*(cut - 1 for cut in cuts), len(layers) - 1]
    stages = tuple(
        Stage(first=first, last=last, resource=("cpu", "big")[number % 2], count=count)
        for number, (first, last, count) in enumerate(zip(firsts, lasts, counts, strict=True))
    )
    return Plan(
        method="test",
        stages=stages,
        servers=PlannedServers(resource="cpu", count=servers),
        throughput=0,
        hours=0,
        usd=0,
        bottleneck="",
        batch_size=job.data.batch_size,
        layers=tuple(layer.name for layer in layers),
    )


class Watcher(Observer):
    """Keeps losses, and stops the run after so many steps of its own, as SIGTERM would."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.losses: list[float] = []
        self.samples: list[int] = []
        self.saves = 0
        self.warnings: list[str] = []
        self._stop_after = stop_after

    def stepped(self, samples: int, seconds: float, loss: float, interval: object) -> None:
        self.losses.append(loss)
        self.samples.append(samples)
        if len(self.losses) == self._stop_after:
            signal.raise_signal(signal.SIGTERM)

    def saved(self, path: str, seconds: float) -> None:
        self.saves += 1

    def warned(self, message: str) -> None:
        self.warnings.append(message)


@dataclasses.dataclass
class Trained:
    """What came of a run."""

    folder: Path
    watcher: Watcher
    outcome: Outcome
    snapshot: Snapshot

    @property
    def losses(self) -> list[float]:
        return self.watcher.losses


def train(
    job: Job,
    folder: Path,
    plan: Plan | None = None,
    *,
    resume: bool = False,
    stop_after: int | None = None,
) -> Trained:
    """In this process, or by a plan on threads unless the job says otherwise."""
    run, watcher = Run(folder), Watcher(stop_after)
    if resume:
        run.resume(job)
    else:
        run.create(job)
    plan = plan or unpredicted_plan(job.cluster, num_cores=job.num_threads)
    outcome = train_once(job, run, plan, resume=resume, observer=watcher)
    assert isinstance(outcome, Outcome)
    return Trained(folder, watcher, outcome, load_latest(run.checkpoints))


def on_threads(job: Job, servers: int = 1, **more: Any) -> Job:
    """The job for launcher local, with workers and servers as threads of this process."""
    workers = {"channel": "memory", "deadline_s": 60.0} | more.pop("workers", {})
    fields = {"launcher": "local", "workers": workers, "servers": {"count": servers, "channel": "memory"}}
    return changed(changed(job, **fields), **more)


def on_processes(job: Job, servers: int = 1, **more: Any) -> Job:
    workers = {"channel": "ipc", "deadline_s": 120.0} | more.pop("workers", {})
    return changed(changed(job, launcher="local", workers=workers, servers={"count": servers}), **more)


def tables_of(snapshot: Snapshot) -> dict[str, np.ndarray]:
    """Everything that was trained, rows in the order of their keys."""
    arrays = {name: array for name, array in snapshot.dense.items() if not name.startswith("random")}
    for name, table in ((name, table.whole()) for name, table in snapshot.tables.items()):
        order = np.argsort(table.keys)
        for part in ("keys", "values", "state", "uses", "clock"):
            arrays[f"{name}.{part}"] = getattr(table, part)[order]
    return arrays


def assert_same(one: Trained, other: Trained, *, losses: bool = True, exact: bool = False) -> None:
    """The losses of all steps to 1e-6 of themselves, and all tables to 1e-5; `exact`: to the last bit."""
    if losses:
        assert len(one.losses) == len(other.losses)
        np.testing.assert_allclose(
            other.losses, one.losses, rtol=0 if exact else LOSS_RTOL, err_msg="losses of steps differ"
        )
    assert one.outcome.samples == other.outcome.samples
    assert_same_tables(one.snapshot, other.snapshot, exact=exact)


def assert_same_tables(one: Snapshot, other: Snapshot, *, exact: bool = False) -> None:
    assert one.clock == other.clock, "not as many updates"
    ours, theirs = tables_of(one), tables_of(other)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.shape == theirs[name].shape, f"{name} has another shape"
        if exact or array.dtype.kind in "iu":
            np.testing.assert_array_equal(theirs[name], array, err_msg=name)
        else:
            largest = float(np.abs(array).max(initial=0.0))
            np.testing.assert_allclose(
                theirs[name], array, rtol=TABLE_RTOL, atol=TABLE_RTOL * largest, err_msg=f"{name} differs"
            )
