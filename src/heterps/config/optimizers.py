"""Optimizers, and the schedules of their learning rates."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from heterps.config.base import Frozen

Beta = Annotated[float, Field(ge=0, lt=1)]


class SGD(Frozen):
    """w -= lr * g"""

    kind: Literal["sgd"] = "sgd"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")


class Momentum(Frozen):
    """`b = momentum * b + g; w -= lr * b`. On a sparse table only the rows of a push move."""

    kind: Literal["momentum"] = "momentum"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    momentum: Beta = Field(0.9, description="Decay of the accumulated direction b.")


class Adagrad(Frozen):
    """s += g*g; w -= lr * g / (sqrt(s) + eps)"""

    kind: Literal["adagrad"] = "adagrad"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    eps: PositiveFloat = Field(1e-10, description="Added to the denominator.")
    initial_accumulator: NonNegativeFloat = Field(0.0, description="What the sum of squares s starts at.")


class RowAdagrad(Frozen):
    """Adagrad with one s a row: `s += mean(g*g); w -= lr * g / (sqrt(s) + eps)`. For sparse tables only."""

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
    """Adam after `w -= lr * weight_decay * w`. For dense parameters only: rows without a gradient would not decay."""

    kind: Literal["adamw"] = "adamw"
    lr: PositiveFloat = Field(0.001, description="Learning rate.")
    beta1: Beta = Field(0.9, description="Decay of the mean of gradients.")
    beta2: Beta = Field(0.999, description="Decay of the mean of squared gradients.")
    eps: PositiveFloat = Field(1e-8, description="Added to the denominator.")
    weight_decay: NonNegativeFloat = Field(
        0.01, description="Each step subtracts lr * weight_decay * w from a weight w."
    )


class FTRL(Frozen):
    """FTRL-Proximal, for sparse tables only: `z += g - (sqrt(n + g*g) - sqrt(n)) / lr * w; n += g*g`, and w becomes
    `(sign(z) * l1 - z) / ((beta + sqrt(n)) / lr + l2)`, or 0 where `abs(z) <= l1`."""

    kind: Literal["ftrl"] = "ftrl"
    lr: PositiveFloat = Field(0.1, description="Learning rate.")
    beta: NonNegativeFloat = Field(1.0, description="Added to sqrt(n): larger values make the first steps smaller.")
    l1: NonNegativeFloat = Field(0.0, description="L1 strength: weights with abs(z) <= l1 become exactly 0.")
    l2: NonNegativeFloat = Field(0.0, description="L2 strength: larger values pull weights towards 0.")


SparseOptimizer = SGD | Momentum | Adagrad | RowAdagrad | Adam | FTRL
DenseOptimizer = SGD | Momentum | Adagrad | Adam | AdamW
Optimizer = SparseOptimizer | DenseOptimizer


class ConstantRate(Frozen):
    """A constant learning rate."""

    kind: Literal["constant"] = "constant"


class ScheduledRate(Frozen):
    """A learning rate that follows the progress of the job."""

    unit: Literal["samples", "updates"] = Field(
        "samples",
        description="Unit of progress: samples that the job has seen, or updates of the table. n asynchronous workers "
        "make n times as many updates as synchronous ones.",
    )


class LinearRate(ScheduledRate):
    """A linear warm-up from 0 to the learning rate, then a linear decay to a fraction of it."""

    kind: Literal["linear"] = "linear"
    warmup: Annotated[int, Field(ge=0)] = Field(0, description="Progress at which the learning rate is reached.")
    until: PositiveInt | None = Field(None, description="Progress at which `floor` is reached; null: no decay.")
    floor: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="Fraction of the learning rate at the end.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_order(self.warmup, self.until)
        return self


class CosineRate(ScheduledRate):
    """A linear warm-up from 0 to the learning rate, then a decay along half a cosine to a fraction of it."""

    kind: Literal["cosine"] = "cosine"
    warmup: Annotated[int, Field(ge=0)] = Field(0, description="Progress at which the learning rate is reached.")
    until: PositiveInt = Field(description="Progress at which `floor` is reached.")
    floor: Annotated[float, Field(ge=0, le=1)] = Field(0.0, description="Fraction of the learning rate at the end.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        _require_order(self.warmup, self.until)
        return self


def _require_order(warmup: int, until: int | None) -> None:
    if until is not None and until <= warmup:
        raise ValueError(f"until ({until:,}) must come after warmup ({warmup:,})")


class StepRate(ScheduledRate):
    """A learning rate that is multiplied by a factor at regular intervals."""

    kind: Literal["step"] = "step"
    every: PositiveInt = Field(description="Progress between two steps.")
    factor: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="Factor of each step.")


Schedule = ConstantRate | LinearRate | CosineRate | StepRate


class Optimizers(Frozen):
    """The optimizers of sparse and dense parameters, and the schedule of their learning rates."""

    sparse: Annotated[SparseOptimizer, Field(discriminator="kind")] = Field(
        Adagrad(lr=0.05), description="Optimizer of the embedding tables, unless a module has its own."
    )
    dense: Annotated[DenseOptimizer, Field(discriminator="kind")] = Field(
        Adam(lr=0.001), description="Optimizer of all other parameters."
    )
    schedule: Annotated[Schedule, Field(discriminator="kind")] = Field(
        ConstantRate(), description="Schedule of all learning rates, unless a module has its own."
    )
