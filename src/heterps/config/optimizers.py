"""The `optimizers` of a job: which are used, the schedules of their learning rates, groups and clipping."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from heterps.config.base import Frozen, Name
from heterps.config.optimizer_kinds import Adagrad, Adam, DenseOptimizer, Optimizer, RowAdagrad, SparseOptimizer
from heterps.errors import ConfigError

Fraction = Annotated[float, Field(ge=0, le=1)]


class Scheduled(Frozen):
    """A learning rate that follows the progress of the job: first a linear warm-up from 0."""

    unit: Literal["samples", "updates"] = Field(
        "samples",
        description="Unit of progress: samples that the job has seen, or updates of the table. n asynchronous workers "
        "make n times as many updates as synchronous ones.",
    )
    warmup: NonNegativeInt = Field(0, description="Progress at which the learning rate is reached.")


class ConstantRate(Scheduled):
    """A learning rate that is constant after the warm-up."""

    kind: Literal["constant"] = "constant"


class LinearRate(Scheduled):
    """A warm-up, then a linear decay to a fraction of the learning rate."""

    kind: Literal["linear"] = "linear"
    until: PositiveInt | None = Field(None, description="Progress at which `floor` is reached; null: no decay.")
    floor: Fraction = Field(0.0, description="Fraction of the learning rate at the end.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_order(self.warmup, self.until)
        return self


class CosineRate(Scheduled):
    """A warm-up, then a decay along half a cosine to a fraction of the learning rate."""

    kind: Literal["cosine"] = "cosine"
    until: PositiveInt = Field(description="Progress at which `floor` is reached.")
    floor: Fraction = Field(0.0, description="Fraction of the learning rate at the end.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_order(self.warmup, self.until)
        return self


def _require_order(warmup: int, until: int | None) -> None:
    if until is not None and until <= warmup:
        raise ValueError(f"until ({until:,}) must come after warmup ({warmup:,})")


class StepRate(Scheduled):
    """A warm-up, after which the learning rate is multiplied by a factor at regular intervals."""

    kind: Literal["step"] = "step"
    every: PositiveInt = Field(description="Progress between two steps.")
    factor: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="Factor of each step.")


class ExponentialRate(Scheduled):
    """A warm-up, then a smooth decay: the learning rate after `every` is that before times `factor`."""

    kind: Literal["exponential"] = "exponential"
    every: PositiveInt = Field(description="Progress in which the learning rate is multiplied by `factor`.")
    factor: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="Factor for each `every`.")
    floor: Fraction = Field(0.0, description="Smallest fraction of the learning rate.")


Schedule = ConstantRate | LinearRate | CosineRate | StepRate | ExponentialRate
AnySchedule = Annotated[Schedule, Field(discriminator="kind")]


class Group(Frozen):
    """Parameters with a learning rate, decay or schedule of their own."""

    match: Name = Field(
        description="Pattern of names, in which * stands for anything: of embedding tables (embedding), and of other "
        "parameters (mlp.0.weight). Of several groups that match a name, the first counts."
    )
    lr: PositiveFloat | None = Field(None, description="Learning rate; null: that of the optimizer.")
    weight_decay: NonNegativeFloat | None = Field(None, description="Weight decay; null: that of the optimizer.")
    schedule: AnySchedule | None = Field(None, description="Schedule; null: that of the other parameters.")

    def matches(self, name: str) -> bool:
        return fnmatchcase(name, self.match)

    def applied_to(self, optimizer: Optimizer) -> Optimizer:
        """The optimizer with the settings of this group."""
        own = {"lr": self.lr, "weight_decay": self.weight_decay}
        if self.weight_decay is not None and not hasattr(optimizer, "weight_decay"):
            raise ConfigError(
                f"optimizers.groups: {self.match}: {optimizer.kind} has no weight_decay: leave it out, or choose "
                "another optimizer"
            )
        return optimizer.model_copy(update={name: value for name, value in own.items() if value is not None})


class Clip(Frozen):
    """Largest norms of gradients: a gradient with a larger one is scaled down to it, as torch's clip_grad_norm_ does.

    The gradient is that of a step: of a whole batch, with those of equal keys added up.
    """

    norm: PositiveFloat | None = Field(None, description="Largest norm of the gradient of all parameters together.")
    dense_norm: PositiveFloat | None = Field(
        None, description="Largest norm of the gradient of all parameters other than embedding tables, together."
    )
    table_norm: PositiveFloat | None = Field(
        None, description="Largest norm of the gradient of each embedding table, by itself."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.norm is not None and (self.dense_norm is not None or self.table_norm is not None):
            raise ValueError("norm is of all parameters: leave it out, or dense_norm and table_norm")
        if self.norm is None and self.dense_norm is None and self.table_norm is None:
            raise ValueError("give norm, dense_norm or table_norm, or leave clip out")
        return self


class Optimizers(Frozen):
    """The optimizers of sparse and dense parameters, and the schedules of their learning rates."""

    sparse: Annotated[SparseOptimizer, Field(discriminator="kind")] = Field(
        Adagrad(lr=0.05), description="Optimizer of the embedding tables, unless a module has its own."
    )
    dense: Annotated[DenseOptimizer, Field(discriminator="kind")] = Field(
        Adam(lr=0.001), description="Optimizer of all other parameters."
    )
    schedule: AnySchedule = Field(
        ConstantRate(), description="Schedule of all learning rates, unless a module has its own."
    )
    sparse_schedule: AnySchedule | None = Field(
        None, description="Schedule of the embedding tables' learning rates; null: `schedule`."
    )
    dense_schedule: AnySchedule | None = Field(
        None, description="Schedule of all other parameters' learning rates; null: `schedule`."
    )
    groups: tuple[Group, ...] = Field(
        (), description="Parameters, chosen by name, with a learning rate, decay or schedule of their own."
    )

    freeze: tuple[Name, ...] = Field(
        (),
        description="Patterns of names, as in `groups`, of embedding tables and other parameters that are not trained: "
        "their values and the state of their optimizer stay as they are, and a table gets no new rows.",
    )
    clip: Clip | None = Field(None, description="Largest norms of gradients; null: gradients are used as they are.")
    accumulate: PositiveInt = Field(
        1,
        description="Number of micro-batches in which a worker computes its share of a batch, one after another. Their "
        "gradients add up to those of the batch, for the memory of one. The step does not change.",
    )

    def for_batches_of(self, batch_size: int) -> Self:
        """The same with the start of Adagrad's rows that `sample_gradient` means for means over this number of samples.

        A row is in one sample of a batch, mostly, and its gradient is that of the sample over the batch size. From 0
        the first step of a row is as long as the learning rate, however small its gradient; from the size of gradients
        it is short where the gradient says little (benchmarks/asynchronous).
        """
        if not isinstance(self.sparse, Adagrad | RowAdagrad) or self.sparse.sample_gradient is None:
            return self
        if self.sparse.initial_accumulator:
            raise ValueError("sparse: give initial_accumulator or sample_gradient, not both")
        start = {"initial_accumulator": (self.sparse.sample_gradient / batch_size) ** 2, "sample_gradient": None}
        return self.model_copy(update={"sparse": self.sparse.model_copy(update=start)})

    def group_of(self, name: str) -> int | None:
        """The number of the group that a table or parameter of this name belongs to."""
        return next((number for number, group in enumerate(self.groups) if group.matches(name)), None)

    def freezes(self, name: str) -> bool:
        """Whether the table or parameter of this name is not trained."""
        return any(fnmatchcase(name, pattern) for pattern in self.freeze)

    def of_table(self, name: str, optimizer: Optimizer, schedule: Schedule) -> tuple[Optimizer, Schedule]:
        """The optimizer and schedule of the embedding table `name`, whose module has these, or the job."""
        return self._in_group(self.group_of(name), optimizer, schedule)

    def of_dense(self, group: int | None) -> tuple[Optimizer, Schedule]:
        """The optimizer and schedule of the dense parameters of a group, or of those that are in none."""
        return self._in_group(group, self.dense, self.dense_schedule or self.schedule)

    def _in_group(self, number: int | None, optimizer: Optimizer, schedule: Schedule) -> tuple[Optimizer, Schedule]:
        if number is None:
            return optimizer, schedule
        group = self.groups[number]
        return group.applied_to(optimizer), group.schedule or schedule
