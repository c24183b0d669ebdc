"""The job as one tree: everything that defines a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from heterps.config.base import Frozen, Name
from heterps.config.cluster import PAPER_CLUSTER, Cluster
from heterps.config.data import Data
from heterps.config.optimizers import Optimizers
from heterps.config.policy_words import parse_policy
from heterps.config.servers import Servers
from heterps.config.sync import BSP, PolicyConfig
from heterps.config.tables import Tables, Tiers
from heterps.config.workers import Emulation, Workers
from heterps.errors import ConfigError
from heterps.yamlfile import check_role, parse, read_model, read_text, validate


class Model(Frozen):
    factory: Name = Field(
        "ctr_dnn",
        description="A zoo name (ctr_dnn, deepfm, match_net, two_emb, nce, alexnet, resnet) or an import path "
        "`package.module:factory`.",
    )
    args: dict[str, Any] = Field({}, description="Keyword arguments of the factory.")


class Checkpoint(Frozen):
    every_samples: PositiveInt | None = Field(None, description="Save after so many samples; none: by time only.")
    every_minutes: PositiveFloat | None = Field(10.0, description="Save after so many minutes; none: by samples only.")
    keep: Annotated[int, Field(ge=2)] = Field(
        2, description="Checkpoints kept; at least two, so that a bad one has a predecessor."
    )


class Job(Frozen):
    """Everything that defines a run."""

    name: Name = Field("job", description="Names the run in reports.")
    model: Model = Field(Model(), description="What is trained.")
    data: Data = Field(description="What it is trained on.")
    optimizers: Optimizers = Field(Optimizers(), description="How parameters follow gradients.")
    tables: Tables = Field(Tables(), description="How rows of embedding tables come and go.")
    tiers: Tiers | None = Field(
        None, description="Memory for embedding tables, and where their other rows are; none: all rows are in memory."
    )
    servers: Servers | None = Field(
        None, description="Parameter servers that hold the tables; none: they are in this process."
    )
    workers: Workers = Field(Workers(), description="The workers of launchers `local` and `ray`.")
    sync: Annotated[PolicyConfig, Field(discriminator="kind")] = Field(
        BSP(),
        description="When a worker may start its next iteration: bsp, asp, ssp:3, dssp:3:12, or the same with its "
        "fields written out.",
    )
    emulation: Emulation | None = Field(
        None, description="Emulate the units of the plan on this machine, by the job's profile; none: run on real ones."
    )
    checkpoint: Checkpoint = Field(Checkpoint(), description="When state is saved.")
    cluster: Cluster = Field(PAPER_CLUSTER, description="What may be rented: inline, or the path of a cluster file.")
    profile: Name | None = Field(
        None, description="A profile.json of this model to predict the run from; none: a quick one is made first."
    )
    plan: Name | None = Field(
        None, description="A plan.json of `heterps plan` for this model and cluster; none: this machine alone."
    )
    launcher: Literal["inline", "local", "ray"] = Field(
        "inline",
        description="Where processes run: inline is this process, local starts workers and servers on this machine, "
        "ray on a Ray cluster.",
    )
    ray_address: Name | None = Field(
        None, description="Of a running Ray cluster (auto, or host:port); none: Ray is started on this machine."
    )
    threads: PositiveInt | None = Field(
        None,
        description="Threads of an inline run, and workers of a run without a plan on other launchers; none: one for "
        "each core.",
    )
    metrics_every_samples: PositiveInt = Field(65_536, description="A line of metrics.jsonl after so many samples.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="Of initial values, shuffling and anything else random."
    )

    @field_validator("sync", mode="before")
    @classmethod
    def _read_word(cls, sync: Any) -> Any:
        """`ssp:3` is short for {kind: ssp, lower: 3}."""
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
        return self

    @property
    def num_threads(self) -> int:
        return self.threads or os.cpu_count() or 1


def load_cluster(path: str | Path) -> Cluster:
    return read_model(path, Cluster, what="cluster file")


def load_job(path: str | Path) -> Job:
    """The job in the file at `path`. Relative paths inside it, as everywhere, are taken from the working directory."""
    path = Path(path)
    return parse_job(read_text(path, what="job file"), where=str(path))


def parse_job(text: str, where: str) -> Job:
    """The job in the YAML `text`; errors say `where` it is from."""
    data, lines = parse(text, where=where, what="job file")
    check_role(data, where=where, what="job file")
    if isinstance(cluster := data.get("cluster"), str):
        try:
            data["cluster"] = load_cluster(cluster)
        except ConfigError as error:
            raise ConfigError(f"{where}:{lines[('cluster',)]}: cluster: {error}") from None
    return validate(data, Job, where=where, lines=lines)
