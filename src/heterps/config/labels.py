"""Labels: what a model learns to predict, one class for each kind.

A class says what the job file may say about a label, and which values the label may have. What is minimised and
measured for it is in `heterps.training.model.label_kinds`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PositiveFloat

from heterps.config.base import Frozen

MAX_CLASSES = 1_000_000
LOSS = "What is minimised, which says what kind of label it is."


class LabelRange(NamedTuple):
    """The values that a label may have, in numbers and in words."""

    words: str
    lowest: float = -math.inf
    highest: float = math.inf
    is_whole: bool = False


class AnyLabel(Frozen):
    """Fields that every kind of label has."""

    weight: PositiveFloat = Field(1.0, description="Factor of this label's loss in the sum over all labels.")
    missing: Literal["error", "mask"] = Field(
        "error",
        description="What to do with a null or NaN: stop with an error, or leave the sample out of the loss and the "
        "metrics of this label.",
    )

    @property
    def range(self) -> LabelRange:
        """The values that this label may have."""
        return LabelRange("a finite number")

    @property
    def num_scores(self) -> int:
        """Number of outputs of the model for one sample."""
        return 1


class BinaryLabel(AnyLabel):
    """0 or 1. The model returns a logit; the loss is the binary cross entropy."""

    loss: Literal["binary"] = Field("binary", description=LOSS)

    @property
    def range(self) -> LabelRange:
        return LabelRange("0 or 1", 0, 1, is_whole=True)


class ClassLabel(AnyLabel):
    """The number of a class. The model returns a score for each class; the loss is the cross entropy of their softmax.

    Two classes are a binary label.
    """

    loss: Literal["classes"] = Field("classes", description=LOSS)
    num_classes: Annotated[int, Field(ge=3, le=MAX_CLASSES)] = Field(description="Labels are 0 to num_classes - 1.")

    @property
    def range(self) -> LabelRange:
        highest = self.num_classes - 1
        return LabelRange(f"a whole number from 0 to {highest}", 0, highest, is_whole=True)

    @property
    def num_scores(self) -> int:
        return self.num_classes


class SquaredLabel(AnyLabel):
    """A real value. The model returns its prediction; the loss is the squared error."""

    loss: Literal["mse"] = Field("mse", description=LOSS)


class HuberLabel(AnyLabel):
    """A real value. The model returns its prediction; the loss of a large error grows linearly."""

    loss: Literal["huber"] = Field("huber", description=LOSS)
    delta: PositiveFloat = Field(1.0, description="Error beyond which the loss grows linearly.")


class PoissonLabel(AnyLabel):
    """A count or a rate. The model returns the logarithm of the rate, so an output below 0 is a rate below 1."""

    loss: Literal["poisson"] = Field("poisson", description=LOSS)

    @property
    def range(self) -> LabelRange:
        return LabelRange("a count or a rate, at least 0", 0)


def _from_name(value: Any) -> Any:
    return {"loss": value} if isinstance(value, str) else value


Label = Annotated[
    Annotated[
        BinaryLabel | ClassLabel | SquaredLabel | HuberLabel | PoissonLabel,
        Field(discriminator="loss"),
    ],
    BeforeValidator(_from_name),
]
"""A label in a job file: `{loss: huber, delta: 0.5}`, or the name of its loss alone."""
