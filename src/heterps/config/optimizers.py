"""How parameters follow gradients: optimizers, and the schedules of their learning rates."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

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
    momentum: Beta = Field(0.9, description="What is kept of the earlier steps' direction b.")


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
    """Adam after `w -= lr * weight_decay * w`. For dense parameters only: rows that rest would not decay."""

    kind: Literal["adamw"] = "adamw"
    lr: PositiveFloat = Field(0.001, description="Learning rate.")
    beta1: Beta = Field(0.9, description="Decay of the mean of gradients.")
    beta2: Beta = Field(0.999, description="Decay of the mean of squared gradients.")
    eps: PositiveFloat = Field(1e-8, description="Added to the denominator.")
    weight_decay: NonNegativeFloat = Field(0.01, description="What of itself, times lr, a weight loses in each step.")


class FTRL(Frozen):
    """FTRL-Proximal, for sparse tables only: `z += g - (sqrt(n + g*g) - sqrt(n)) / lr * w; n += g*g`, and w becomes
    `(sign(z) * l1 - z) / ((beta + sqrt(n)) / lr + l2)`, or 0 where `abs(z) <= l1`."""

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

    unit: Literal["samples", "updates"] = Field(
        "samples",
        description="What progress is counted in: samples that the job has seen, or updates of the table, of which "
        "asynchronous workers make as many times more as there are workers.",
    )


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
