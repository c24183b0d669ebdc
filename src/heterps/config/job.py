"""The job: the root of the tree of settings that define a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator, model_validator

from heterps.config.base import Frozen, Name
from heterps.config.cluster import PAPER_CLUSTER, Cluster
from heterps.config.data import Data
from heterps.config.launchers import LAUNCHERS, LauncherName
from heterps.config.optimizers import Optimizers
from heterps.config.policy_words import parse_policy
from heterps.config.servers import Servers
from heterps.config.start import Start
from heterps.config.sync import BSP, AnyPolicy
from heterps.config.tables import Tables, Tiers
from heterps.config.validation import Validation
from heterps.config.workers import Emulation, Workers
from heterps.devices import Precision
from heterps.errors import ConfigError
from heterps.yamlfile import check_role, parse, read_model, read_text, validate

Tracker = Literal["tensorboard", "mlflow"]


class Model(Frozen):
    """The model to train: a factory and its arguments."""

    factory: Name = Field(
        "ctr_dnn",
        description="A zoo name (ctr_dnn, deepfm, match_net, two_emb, nce, mmoe, din, bst, alexnet, resnet) or an "
        "import path `package.module:factory` or `path/to/script.py:factory`.",
    )
    args: dict[str, Any] = Field({}, description="Keyword arguments of the factory.")


class Checkpoint(Frozen):
    """How often the state is saved, and how many checkpoints are kept."""

    every_samples: PositiveInt | None = Field(
        None, description="Number of samples between two checkpoints; null: by time only."
    )
    every_minutes: PositiveFloat | None = Field(
        10.0, description="Minutes between two checkpoints; null: by samples only."
    )
    keep: Annotated[int, Field(ge=2)] = Field(
        2, description="Number of checkpoints to keep; at least two, so that a damaged one has a predecessor."
    )

    full_every: Annotated[int, Field(ge=1, le=100)] = Field(
        1,
        description="Every how many checkpoints one has all rows; the others have those that changed since the one "
        "before. 1: all have all rows.",
    )
    grace_s: PositiveFloat = Field(
        120.0,
        description="Longest time between SIGTERM and the end, in seconds. The command finishes the running step and "
        "saves; if that takes longer, it ends with an error, and the last checkpoint is good. A server that gets "
        "SIGTERM serves on for as long, until it was replaced, or all was saved.",
    )


class Job(Frozen):
    """Everything that defines a run."""

    name: Name = Field("job", description="Name of the run in reports.")
    model: Model = Field(Model(), description="The model to train.")
    data: Data = Field(description="The data to train on.")
    optimizers: Optimizers = Field(
        Optimizers(), validate_default=True, description="The optimizers of sparse and dense parameters."
    )
    tables: Tables = Field(Tables(), description="Initial values, admission and eviction of embedding rows.")
    tiers: Tiers | None = Field(
        None, description="Memory limit of embedding tables, and the disk for other rows; null: all rows are in memory."
    )
    servers: Servers | None = Field(
        None, description="Parameter servers that hold the tables; null: the tables are in this process."
    )
    workers: Workers = Field(Workers(), description="The workers of the launchers `local` and `ray`.")
    start: Start | None = Field(
        None,
        description="What the job starts from: another model, by its path or with the fields written out, or rows of "
        "files; null: initial values. A resumed run goes on from its own checkpoint.",
    )
    sync: AnyPolicy = Field(
        BSP(),
        description="When a worker may start its next iteration: bsp, asp, ssp:3, dssp:3:12, or the same with its "
        "fields written out.",
    )
    emulation: Emulation | None = Field(
        None, description="Emulate the plan's units on this machine, by the job's profile; null: run on real units."
    )
    checkpoint: Checkpoint = Field(Checkpoint(), description="When the state is saved.")
    validation: Validation = Field(
        Validation(), description="When the model is validated on `data.validation`, and what follows from it."
    )
    on_divergence: Literal["warn", "raise"] = Field(
        "warn",
        description="What happens when the loss of an interval is far above that of earlier ones and of always saying "
        "the average label: a warning, or the end of the run with an error.",
    )
    on_not_finite: Literal["raise", "skip", "quarantine"] = Field(
        "raise",
        description="What happens to a batch whose loss or gradients are NaN or infinite: raise ends the run with an "
        "error, skip goes on without it, quarantine does that and names its rows in RUN/quarantine.jsonl. Too many "
        "such batches end the run in any case.",
    )
    cluster: Cluster = Field(
        PAPER_CLUSTER, description="The resources that may be rented: written here, or the path of a cluster file."
    )
    profile: Name | None = Field(
        None, description="Path of a profile.json of this model to predict the run from; null: a quick one is made."
    )
    plan: Name | None = Field(
        None, description="Path of a plan.json of `heterps plan` for this model and cluster; null: this machine alone."
    )
    launcher: LauncherName = Field(
        "inline",
        description="Where processes run: inline is this process, local starts workers and servers on this machine, "
        "ray on a Ray cluster.",
    )
    ray_address: Name | None = Field(
        None, description="Address of a running Ray cluster (auto, or host:port); null: Ray starts on this machine."
    )
    threads: PositiveInt | None = Field(
        None,
        description="Number of threads of an inline run, or of workers of a run without a plan on other launchers; "
        "null: one per core.",
    )
    precision: Precision = Field(
        "fp32",
        description="Precision in which layers compute in training: bf16 is torch's autocast, in which matrix products "
        "and convolutions are of bfloat16. Parameters, optimizers and evaluations stay float32.",
    )
    metrics_every_samples: PositiveInt = Field(
        65_536, description="Number of samples between two lines of metrics.jsonl."
    )
    report_to: tuple[Tracker, ...] = Field(
        (),
        description="Trackers of experiments that get the metrics too: tensorboard, whose events are in "
        "RUN/tensorboard, and mlflow, at the server that MLFLOW_TRACKING_URI names.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="Seed of initial values, shuffling and everything else that is random."
    )

    @field_validator("optimizers")
    @classmethod
    def _suit_batches(cls, optimizers: Optimizers, info: ValidationInfo) -> Optimizers:
        """Fill in what depends on the batch size."""
        data = info.data.get("data")  # none if it is wrong, which is told
        return optimizers.for_batches_of(data.batch_size) if data is not None else optimizers

    @field_validator("sync", mode="before")
    @classmethod
    def _read_word(cls, sync: Any) -> Any:
        """Expand a short form: `ssp:3` means {kind: ssp, lower: 3}."""
        if not isinstance(sync, str):
            return sync
        try:
            return parse_policy(sync)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.workers.dense == "all_reduce" and not self.sync.in_rounds:
            raise ValueError(
                f"workers.dense: all_reduce keeps workers in step, so sync must be bsp, not {self.sync.label}"
            )
        if self.workers.dense == "all_reduce" and self.on_not_finite != "raise":
            raise ValueError(
                f"on_not_finite: {self.on_not_finite} needs servers that can drop a round; with workers.dense: "
                "all_reduce every worker has made its step by then. Use workers.dense: servers, or on_not_finite: raise"
            )
        if self.data.validation is None and self.validation != Validation():
            raise ValueError("validation needs data: name files, or a share of the training data, in data.validation")
        return self

    @property
    def has_workers(self) -> bool:
        """Whether workers run the stages of the plan; otherwise this process has all layers, and follows no plan."""
        return LAUNCHERS[self.launcher].has_workers

    @property
    def is_elsewhere(self) -> bool:
        """Whether workers and servers are on machines that this one knows nothing of."""
        return LAUNCHERS[self.launcher].is_spread and self.ray_address is not None

    @property
    def num_threads(self) -> int:
        return self.threads or os.cpu_count() or 1

    @property
    def table_budget_bytes(self) -> int | None:
        """The least memory that the job gives its tables, by tiers or eviction; None: as much as they need."""
        given = (self.tiers.memory_bytes if self.tiers else None, self.tables.eviction.max_bytes)
        return min((budget for budget in given if budget is not None), default=None)


def load_cluster(path: str | Path) -> Cluster:
    """Read the cluster file at `path`. Raises ConfigError, which names the line and the field."""
    return read_model(path, Cluster, what="cluster file")


def load_job(path: str | Path) -> Job:
    """Read the job file at `path`. Relative paths inside it are relative to the working directory."""
    path = Path(path)
    return parse_job(read_text(path, what="job file"), where=str(path))


def parse_job(text: str, where: str) -> Job:
    """Parse the job in the YAML `text`; error messages name `where` it is from."""
    data, lines = parse(text, where=where, what="job file")
    check_role(data, where=where, what="job file")
    if isinstance(cluster := data.get("cluster"), str):
        try:
            data["cluster"] = load_cluster(cluster)
        except ConfigError as error:
            raise ConfigError(f"{where}:{lines[('cluster',)]}: cluster: {error}") from None
    return validate(data, Job, where=where, lines=lines)
