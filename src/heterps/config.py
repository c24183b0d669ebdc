"""The job as one tree of frozen, validated models: everything that defines a run, and nothing configured elsewhere.

    Job -- model        a zoo name or an import path, and its arguments
        -- data         files, schema, batches, epochs
        -- optimizers   sparse (tables) and dense, with the schedule of their learning rates
        -- tables       how rows begin, which keys get one, and which rows go
        -- checkpoint   how often, how many are kept
            -- cluster      resources, prices, limits (also a file of its own: cluster.yaml)

Every field has a `description`; the reference of the job file is generated from them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from heterps.errors import ConfigError
from heterps.offers import OFFERS, Offer, find_offer
from heterps.yamlfile import parse, read_model, read_text, validate

Name = Annotated[str, Field(min_length=1, max_length=200)]


class Frozen(BaseModel):
    """A value: fixed once made, typos refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


# --- cluster ---------------------------------------------------------------------------------------------------------


class Resource(Frozen):
    """A kind of compute unit that can be rented."""

    kind: Name | None = Field(
        None,
        description="Which offer of `heterps prices` this is: it gives what is left out of device and price, and the "
        "device whose costs in a profile apply. None: the offer with the resource's name, if there is one.",
    )
    device: Name = Field(
        "cpu", description="Torch device of one unit: cpu, cuda, xpu, mps. Left out: the offer's, or cpu without one."
    )
    usd_per_hour: NonNegativeFloat = Field(
        description="Price of one unit for an hour. May be left out where the resource is an offer: its list price."
    )
    limit: Annotated[int, Field(ge=0)] = Field(description="How many units may be rented; 0 takes the resource out.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """What is left out comes from the offer; a field that is none is left to pydantic, which names the nearest."""
        if not isinstance(data, dict) or not set(data) <= set(cls.model_fields):
            return data
        kind = data.get("kind")
        if isinstance(kind, str):
            return _offered(kind) | data
        if kind is None and "usd_per_hour" not in data:
            raise ValueError(
                "usd_per_hour is missing, and there is no offer to take it from: write it, or say with `kind` which "
                "offer this is; `heterps prices` lists them"
            )
        return data


class Cluster(Frozen):
    """What may be rented, and for how much."""

    resources: dict[Name, Resource] = Field(description="Resource name to its device, price and limit.")
    server_resource: Name = Field(description="The resource that parameter servers run on.")

    @field_validator("resources", mode="before")
    @classmethod
    def _fill(cls, resources: Any) -> Any:
        """A resource with the name of an offer, and no kind of its own, is that offer."""
        if not isinstance(resources, dict):
            return resources
        return {
            name: _offered(name) | resource
            if isinstance(resource, dict) and name in OFFERS and resource.get("kind") is None
            else resource
            for name, resource in resources.items()
        }

    def offer(self, name: str) -> Offer | None:
        """The offer that the resource of this name is, by its kind or by its name."""
        return OFFERS.get(self.resources[name].kind or name)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.resources:
            raise ValueError(
                "a cluster needs at least one resource, for example cpu: {device: cpu, usd_per_hour: 0.04, limit: 8}"
            )
        if all(resource.limit == 0 for resource in self.resources.values()):
            raise ValueError("every resource has limit 0, so nothing can be rented: raise a limit")
        if self.server_resource not in self.resources:
            raise ValueError(
                f"server_resource {self.server_resource!r} is not one of the resources: {', '.join(self.resources)}"
            )
        return self


def _offered(kind: str) -> dict[str, Any]:
    """The fields that an offer fills in."""
    try:
        offer = find_offer(kind)
    except ConfigError as error:
        raise ValueError(f"kind {error}") from None
    return {"device": offer.torch_device, "usd_per_hour": offer.usd_per_hour}


PAPER_CLUSTER = Cluster(
    resources={
        "cpu": Resource(device="cpu", usd_per_hour=0.04, limit=480),
        "v100": Resource(device="cuda", usd_per_hour=2.42, limit=32),
    },
    server_resource="cpu",
)
"""The cluster of the HeterPS paper: 10 CPU servers of 48 cores and 4 GPU servers of 8 V100, at its prices."""


# --- optimizers ------------------------------------------------------------------------------------------------------

Beta = Annotated[float, Field(ge=0, lt=1)]


class SGD(Frozen):
    """w -= lr * g"""

    kind: Literal["sgd"] = "sgd"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")


class Momentum(Frozen):
    """b = momentum * b + g; w -= lr * b. On a sparse table only the rows of a push move."""

    kind: Literal["momentum"] = "momentum"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    momentum: Beta = Field(0.9, description="What is kept of the earlier steps' direction b.")


class Adagrad(Frozen):
    """s += g*g; w -= lr * g / (sqrt(s) + eps)"""

    kind: Literal["adagrad"] = "adagrad"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    eps: PositiveFloat = Field(1e-10, description="Added to the denominator.")
    initial_accumulator: NonNegativeFloat = Field(0.0, description="What the sum of squares s starts at.")


class RowAdagrad(Frozen):
    """Adagrad with one s a row: s += mean(g*g); w -= lr * g / (sqrt(s) + eps). For sparse tables only."""

    kind: Literal["row_adagrad"] = "row_adagrad"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    eps: PositiveFloat = Field(1e-10, description="Added to the denominator.")
    initial_accumulator: NonNegativeFloat = Field(0.0, description="What the sum of squares s starts at.")


class Adam(Frozen):
    """Adam with bias correction. On a sparse table only the rows of a push move (torch's SparseAdam)."""

    kind: Literal["adam"] = "adam"
    lr: PositiveFloat = Field(0.001, description="Learning rate.")
    beta1: Beta = Field(0.9, description="Decay of the mean of gradients.")
    beta2: Beta = Field(0.999, description="Decay of the mean of squared gradients.")
    eps: PositiveFloat = Field(1e-8, description="Added to the denominator.")


class AdamW(Frozen):
    """Adam after w -= lr * weight_decay * w. For dense parameters only: rows that rest would not decay."""

    kind: Literal["adamw"] = "adamw"
    lr: PositiveFloat = Field(0.001, description="Learning rate.")
    beta1: Beta = Field(0.9, description="Decay of the mean of gradients.")
    beta2: Beta = Field(0.999, description="Decay of the mean of squared gradients.")
    eps: PositiveFloat = Field(1e-8, description="Added to the denominator.")
    weight_decay: NonNegativeFloat = Field(0.01, description="What of itself, times lr, a weight loses in each step.")


class FTRL(Frozen):
    """FTRL-Proximal: z += g - (sqrt(n + g*g) - sqrt(n)) / lr * w; n += g*g; w is 0 where |z| <= l1, and otherwise
    (sign(z) * l1 - z) / ((beta + sqrt(n)) / lr + l2). For sparse tables only."""

    kind: Literal["ftrl"] = "ftrl"
    lr: PositiveFloat = Field(0.1, description="Learning rate.")
    beta: NonNegativeFloat = Field(1.0, description="Keeps the first steps small.")
    l1: NonNegativeFloat = Field(0.0, description="Weights whose evidence is below become exactly 0.")
    l2: NonNegativeFloat = Field(0.0, description="Draws weights towards 0.")


SparseOptimizer = SGD | Momentum | Adagrad | RowAdagrad | Adam | FTRL
DenseOptimizer = SGD | Momentum | Adagrad | Adam | AdamW
Optimizer = SparseOptimizer | DenseOptimizer


class ConstantRate(Frozen):
    """The learning rate stays as it is."""

    kind: Literal["constant"] = "constant"


class ScheduledRate(Frozen):
    """A learning rate that follows the progress of the job."""

    unit: Literal["samples"] = Field("samples", description="What progress is counted in.")


class LinearRate(ScheduledRate):
    """Up from 0 to the learning rate, then in a straight line down to a part of it."""

    kind: Literal["linear"] = "linear"
    warmup: Annotated[int, Field(ge=0)] = Field(0, description="Where the learning rate is reached.")
    until: PositiveInt | None = Field(None, description="Where `floor` is reached; null: it stays at the top.")
    floor: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="What part of the learning rate remains.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_order(self.warmup, self.until)
        return self


class CosineRate(ScheduledRate):
    """Up from 0 to the learning rate, then along half a cosine down to a part of it."""

    kind: Literal["cosine"] = "cosine"
    warmup: Annotated[int, Field(ge=0)] = Field(0, description="Where the learning rate is reached.")
    until: PositiveInt = Field(description="Where `floor` is reached.")
    floor: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="What part of the learning rate remains.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_order(self.warmup, self.until)
        return self


def _require_order(warmup: int, until: int | None) -> None:
    if until is not None and until <= warmup:
        raise ValueError(f"until ({until:,}) must come after warmup ({warmup:,})")


class StepRate(ScheduledRate):
    """Times a factor, again and again."""

    kind: Literal["step"] = "step"
    every: PositiveInt = Field(description="After how much progress.")
    factor: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="What the learning rate is multiplied by.")


Schedule = ConstantRate | LinearRate | CosineRate | StepRate


class Optimizers(Frozen):
    sparse: Annotated[SparseOptimizer, Field(discriminator="kind")] = Field(
        Adagrad(lr=0.05), description="Of the embedding tables, unless a module brings its own."
    )
    dense: Annotated[DenseOptimizer, Field(discriminator="kind")] = Field(
        Adam(lr=0.001), description="Of all other parameters."
    )
    schedule: Annotated[Schedule, Field(discriminator="kind")] = Field(
        ConstantRate(), description="Of all learning rates, unless a module brings its own."
    )


# --- tables ----------------------------------------------------------------------------------------------------------


class Uniform(Frozen):
    """Uniform in [-scale, scale)."""

    kind: Literal["uniform"] = "uniform"
    scale: NonNegativeFloat = Field(0.01, description="The largest absolute value.")


class Normal(Frozen):
    """Normal with mean 0, cut off at 4.2 standard deviations."""

    kind: Literal["normal"] = "normal"
    std: NonNegativeFloat = Field(0.01, description="Standard deviation.")


class Constant(Frozen):
    """The same value everywhere."""

    kind: Literal["constant"] = "constant"
    value: float = Field(description="The value.")


class Zero(Frozen):
    """Zeros."""

    kind: Literal["zero"] = "zero"


Initializer = Uniform | Normal | Constant | Zero


class Always(Frozen):
    """Every key gets a row when it is first pulled or pushed."""

    kind: Literal["always"] = "always"


class AfterSightings(Frozen):
    """A key gets a row with its `num`-th push, as a sketch counts them: now and then one gets it too early."""

    kind: Literal["sightings"] = "sightings"
    num: Annotated[int, Field(ge=1, le=255)] = Field(description="Pushes with the key until it gets a row.")
    sketch_bytes: Annotated[int, Field(ge=1024)] = Field(
        1 << 22,
        description="Memory of the sketch, on each shard; about 4 for each key that waits. All its counts are halved "
        "after as many sightings, so that keys which come rarely enough never get a row.",
    )


class WithProbability(Frozen):
    """A key gets a row with each push by chance, so that frequent keys get one soon and most rare ones never."""

    kind: Literal["probability"] = "probability"
    p: Annotated[float, Field(gt=0, le=1)] = Field(description="The chance, each time.")


Admission = Always | AfterSightings | WithProbability


class Eviction(Frozen):
    """Which rows go. A row that went is as if it had never been: its key begins anew."""

    max_age: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="Rows that so many pushes in a row had no gradient for go."
    )
    min_uses: PositiveFloat | None = Field(
        None, description="Rows whose uses have faded below go; a new row has 1, and 1 more with each push of its key."
    )
    half_life: PositiveInt = Field(4096, description="After so many pushes to the table a use counts half.")
    max_bytes: PositiveInt | None = Field(
        None, description="Memory for the rows of a table on each shard; the coldest go when it is full."
    )
    order: Literal["lfu", "lru"] = Field(
        "lfu", description="Which rows are the coldest: those with the fewest uses left, or those unused for longest."
    )


class Tables(Frozen):
    """Of the embedding tables, unless a module brings its own."""

    init: Annotated[Initializer, Field(discriminator="kind")] | None = Field(
        None, description="What new rows hold; null: what the module says, uniform in [-0.01, 0.01) if nothing."
    )
    admission: Annotated[Admission, Field(discriminator="kind")] = Field(
        Always(),
        description="Which keys get a row. One without a row reads its initial values; its gradients are lost.",
    )
    eviction: Eviction = Field(Eviction(), description="Which rows go.")


# --- faults ----------------------------------------------------------------------------------------------------------

Chance = Annotated[float, Field(ge=0, le=1)]


class Faults(Frozen):
    """What goes wrong on the way of a message, to see that a job bears it. Chances are by message."""

    drop: Chance = Field(0.0, description="Chance that a message is lost.")
    double: Chance = Field(0.0, description="Chance that a message is delivered twice.")
    delay_s: NonNegativeFloat = Field(0.0, description="Messages are late by up to so many seconds, in order.")
    reorder: Chance = Field(0.0, description="Chance that later messages may overtake this one, which is held back.")
    corrupt: Chance = Field(0.0, description="Chance that one bit of a message is flipped.")
    cut: Chance = Field(0.0, description="Chance that a message breaks the way to its receiver for a while.")
    cut_s: PositiveFloat = Field(1.0, description="How long a way stays broken; what is sent in that time is lost.")


# --- job -------------------------------------------------------------------------------------------------------------


class Model(Frozen):
    factory: Name = Field(
        "ctr_dnn",
        description="A zoo name (ctr_dnn, deepfm, match_net, two_emb, nce) or an import path `package.module:factory`.",
    )
    args: dict[str, Any] = Field({}, description="Keyword arguments of the factory.")


class Schema(Frozen):
    """Which columns hold what, and what to do where a value is missing."""

    label: Name = Field("label", description="Column of the label, 0 or 1.")
    dense: tuple[Name, ...] = Field(tuple(f"I{i}" for i in range(1, 14)), description="Columns of numbers.")
    slots: tuple[Name, ...] = Field(
        tuple(f"C{i}" for i in range(1, 27)),
        description="Columns of ids: integers or strings, or lists of them.",
    )
    dense_missing: Literal["fill", "error", "skip"] = Field(
        "fill",
        description="A null or NaN in a dense column: fill it, stop with an error, or skip the row and count it.",
    )
    dense_fill: float = Field(0.0, description="What `dense_missing: fill` writes.")
    slot_missing: Literal["key", "error", "skip"] = Field(
        "key",
        description="A null in a slot: give it a key of its own, stop with an error, or skip the row and count it.",
    )
    same_ids: dict[Name, Name] = Field(
        {},
        description="Slots that hold ids of another slot, as in {negative_item: item}: an id then has the same key, "
        "and in an embedding of both slots the same row, in either.",
    )

    def ids_of(self, slot: str) -> str:
        """The slot whose ids `slot` holds: mostly its own."""
        return self.same_ids.get(slot, slot)

    @model_validator(mode="after")
    def _check(self) -> Self:
        columns = [self.label, *self.dense, *self.slots]
        doubled = sorted({c for c in columns if columns.count(c) > 1})
        if doubled:
            raise ValueError(f"a column has one role only; named twice: {', '.join(doubled)}")
        if not self.dense and not self.slots:
            raise ValueError("a schema needs at least one dense column or one slot")
        for slot, other in self.same_ids.items():
            if slot not in self.slots or other not in self.slots:
                raise ValueError(f"same_ids: {slot}: {other} must be two of the slots: {', '.join(self.slots)}")
            if slot == other or other in self.same_ids:
                raise ValueError(f"same_ids: {slot}: {other} must lead to a slot with ids of its own")
        return self


Paths = Name | Annotated[tuple[Name, ...], Field(min_length=1)]


class Data(Frozen):
    train: Paths = Field(description="Parquet files: a path, a folder, a glob, or a list; any fsspec address.")
    test: Paths | None = Field(None, description="The same, for evaluation; none: no evaluation.")
    columns: Schema = Field(Schema(), description="Which columns hold what, and what to do with missing values.")
    batch_size: PositiveInt = Field(4096, description="Samples of one optimizer step.")
    epochs: PositiveInt = Field(1, description="Passes over the training data.")
    shuffle: bool = Field(
        True, description="Visit row groups in a random order, and rows inside each, anew every epoch."
    )
    prefetch: PositiveInt = Field(4, description="Batches made ready ahead of use.")


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
    if isinstance(cluster := data.get("cluster"), str):
        try:
            data["cluster"] = load_cluster(cluster)
        except ConfigError as error:
            raise ConfigError(f"{path}:{lines[('cluster',)]}: cluster: {error}") from None
    return validate(data, Job, where=str(path), lines=lines)
