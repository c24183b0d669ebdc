"""The job as one tree: everything that defines a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
)

from heterps.config.base import Frozen, Name
from heterps.config.cluster import PAPER_CLUSTER, Cluster
from heterps.config.data import Data
from heterps.config.optimizers import Optimizers
from heterps.config.servers import Servers
from heterps.config.tables import Tables, Tiers
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
    checkpoint: Checkpoint = Field(Checkpoint(), description="When state is saved.")
    cluster: Cluster = Field(PAPER_CLUSTER, description="What may be rented: inline, or the path of a cluster file.")
    profile: Name | None = Field(
        None, description="A profile.json of this model to predict the run from; none: a quick one is made first."
    )
    plan: Name | None = Field(
        None, description="A plan.json of `heterps plan` for this model and cluster; none: this machine alone."
    )
    launcher: Literal["inline"] = Field("inline", description="Where processes run: inline is this process.")
    threads: PositiveInt | None = Field(None, description="Threads of an inline run; none: one for each core.")
    metrics_every_samples: PositiveInt = Field(65_536, description="A line of metrics.jsonl after so many samples.")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="Of initial values, shuffling and anything else random."
    )

    @property
    def num_threads(self) -> int:
        return self.threads or os.cpu_count() or 1


def load_cluster(path: str | Path) -> Cluster:
    return read_model(path, Cluster, what="cluster file")


def load_job(path: str | Path) -> Job:
    """The job in the file at `path`. Relative paths inside it, as everywhere, are taken from the working directory."""
    path = Path(path)
    data, lines = parse(read_text(path, what="job file"), where=str(path), what="job file")
    check_role(data, where=str(path), what="job file")
    if isinstance(cluster := data.get("cluster"), str):
        try:
            data["cluster"] = load_cluster(cluster)
        except ConfigError as error:
            raise ConfigError(f"{path}:{lines[('cluster',)]}: cluster: {error}") from None
    return validate(data, Job, where=str(path), lines=lines)
