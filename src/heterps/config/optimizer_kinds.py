"""The optimizers: the settings of each. Their steps are in `ps/table/optimizers.py`.

To add one, write its class here, and name it in `__all__` and in the unions at the end: `heterps.config` and
`heterps.ps` export what `__all__` names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from heterps.config.base import Frozen
from heterps.errors import ConfigError

__all__ = ["FTRL", "SGD", "Adagrad", "Adam", "AdamW", "Momentum", "RowAdagrad"]

Beta = Annotated[float, Field(ge=0, lt=1)]
L2 = Annotated[
    float,
    Field(
        ge=0,
        description="L2 strength: weight_decay * w is added to the gradient of a weight w. Of a table, only the rows "
        "of a push decay.",
    ),
]


_SAMPLE_GRADIENT = (
    "Of embedding tables in a job: the size of the gradient of one sample, from which the sum of squares s starts, "
    "whatever the batch size: s = (sample_gradient / batch_size)². 0.3 suits click models with layers above their "
    "embeddings. Null: s starts at initial_accumulator."
)


class SGD(Frozen):
    """w -= lr * g"""

    kind: Literal["sgd"] = "sgd"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    weight_decay: L2 = 0.0


class Momentum(Frozen):
    """`b = momentum * b + g; w -= lr * b`. On a sparse table only the rows of a push move."""

    kind: Literal["momentum"] = "momentum"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    momentum: Beta = Field(0.9, description="Decay of the accumulated direction b.")
    weight_decay: L2 = 0.0


class Adagrad(Frozen):
    """s += g*g; w -= lr * g / (sqrt(s) + eps)"""

    kind: Literal["adagrad"] = "adagrad"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    eps: PositiveFloat = Field(1e-10, description="Added to the denominator.")
    initial_accumulator: NonNegativeFloat = Field(0.0, description="What the sum of squares s starts at.")
    sample_gradient: float | None = Field(None, gt=0, description=_SAMPLE_GRADIENT)
    weight_decay: L2 = 0.0


class RowAdagrad(Frozen):
    """Adagrad with one s a row: `s += mean(g*g); w -= lr * g / (sqrt(s) + eps)`. For sparse tables only."""

    kind: Literal["row_adagrad"] = "row_adagrad"
    lr: PositiveFloat = Field(0.01, description="Learning rate.")
    eps: PositiveFloat = Field(1e-10, description="Added to the denominator.")
    initial_accumulator: NonNegativeFloat = Field(0.0, description="What the sum of squares s starts at.")
    sample_gradient: float | None = Field(None, gt=0, description=_SAMPLE_GRADIENT)
    weight_decay: L2 = 0.0


class Adam(Frozen):
    """Adam with bias correction. On a sparse table only the rows of a push move (torch's SparseAdam)."""

    kind: Literal["adam"] = "adam"
    lr: PositiveFloat = Field(0.001, description="Learning rate.")
    beta1: Beta = Field(0.9, description="Decay of the mean of gradients.")
    beta2: Beta = Field(0.999, description="Decay of the mean of squared gradients.")
    eps: PositiveFloat = Field(1e-8, description="Added to the denominator.")
    weight_decay: L2 = 0.0


class AdamW(Frozen):
    """Adam after `w -= lr * weight_decay * w`. On a sparse table only the rows of a push move and decay."""

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


SparseOptimizer = SGD | Momentum | Adagrad | RowAdagrad | Adam | AdamW | FTRL
DenseOptimizer = SGD | Momentum | Adagrad | Adam | AdamW
Optimizer = SparseOptimizer | DenseOptimizer


def check_optimizer(optimizer: object) -> None:
    """Raise ConfigError if `optimizer` is not one of heterps, but for example torch's."""
    if not isinstance(optimizer, Optimizer):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise ConfigError(
            "an optimizer must be one of heterps.ps, such as heterps.ps.Adagrad(lr=0.05), which steps where the rows "
            f"are; got {kind.__module__}.{kind.__qualname__}."
        )
