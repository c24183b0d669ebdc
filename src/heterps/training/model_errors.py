"""What is said of errors that are the model's: in its own code, in its loss, in a checkpoint that is of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from heterps.errors import HeterpsError, ModelError


@contextmanager
def own_code(model: nn.Module, when: str) -> Iterator[None]:
    """Say of an error in the model's own code that it is the model's, and when it happened: "after 3 steps"."""
    try:
        yield
    except HeterpsError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} failed {when}: {type(error).__name__}: {str(error).strip().rstrip('.')}. "
            "Check that it was made for the columns of the data; --debug shows the line."
        ) from error


def first_bad_parameter(parameters: Iterable[tuple[str, Tensor]], whose: str = "") -> str:
    """A sentence about the first of the named parameters that is not finite; `whose` they are where all are."""
    for name, parameter in parameters:
        if not torch.isfinite(parameter).all():
            return f"The first parameter that is not finite is {name}: lower its learning rate."
    return f"Every dense parameter{whose} is finite: look at the rows of the embeddings, the data and the loss itself."


def another_model(why: str) -> ModelError:
    return ModelError(
        f"the checkpoint is of another model or optimizer: {why}. "
        "Train with the model that made it, or start a new run."
    )
