"""What is said of errors that are the model's: in its own code, in its loss, in a checkpoint that is of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor, nn

from heterps.arrays import FloatArray
from heterps.errors import DataError, HeterpsError, ModelError, NotFinite
from heterps.lookups import RowGradients, RowUse
from heterps.nn import embeddings
from heterps.ps.table.finite import first_not_finite


@contextmanager
def own_code(model: nn.Module, when: str) -> Iterator[None]:
    """Say of an error in the model's own code that it is the model's, and when it happened: "after 3 steps"."""
    try:
        yield
    except Exception as error:
        if isinstance(error, HeterpsError) and not isinstance(error, DataError):
            raise
        kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
        raise ModelError(
            f"{type(model).__name__} failed {when}: {kind}{str(error).strip().rstrip('.')}. "
            "Check that it was made for the columns of the data; --debug shows the line."
        ) from error


def first_bad_parameter(parameters: Iterable[tuple[str, Tensor]], whose: str = "") -> str:
    """A sentence about the first of the named parameters that is not finite; `whose` they are where all are."""
    for name, parameter in parameters:
        if not torch.isfinite(parameter).all():
            return f"The first parameter that is not finite is {name}: lower its learning rate."
    return f"Every dense parameter{whose} is finite: look at the rows of the embeddings, the data and the loss itself."


class GradientCheck:
    """Refuses gradients of a model that are NaN or infinite, before any of them is pushed.

    model       whose embeddings have their tables under their own names
    parameters  of each dense table: the names of the parameters that lie side by side in it
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, Iterable[str]]) -> None:
        own = dict(model.named_parameters())
        self._sizes = {table: [(name, own[name].numel()) for name in names] for table, names in parameters.items()}
        self._layers = {
            (table, slot): name
            for name, module in embeddings(model)
            for table, slots in module.slots_of(name)
            for slot in slots
        }

    def __call__(
        self, dense: Mapping[str, FloatArray], rows: Iterable[RowGradients], uses: Iterable[RowUse], when: str
    ) -> None:
        """Raise NotFinite, naming table, layer, slot and key, where a gradient is not finite.

        uses  the uses of tables that `rows` are of
        when  it is from: "of step 12"
        """
        for table, grads in dense.items():
            if (at := first_not_finite(grads)) >= 0:
                layer, _, part = self._parameter_at(table, at).rpartition(".")
                whose = f"parameter {part} of {f'layer {layer}' if layer else 'the model'}"
                raise NotFinite(_bad_gradient(float(grads.flat[at]), table, whose, when))
        if any(first_not_finite(found.grads) >= 0 for found in rows):
            self._check_uses(uses, when)

    def _check_uses(self, uses: Iterable[RowUse], when: str) -> None:
        for use in uses:
            grads = use.gradient
            if (at := first_not_finite(grads)) >= 0:
                number = at // grads.shape[1]
                slot = use.part.slot_of(number)
                whose = (
                    f"the row of key {use.part.keys[number]} of slot {slot} of layer {self._layers[use.table, slot]}"
                )
                raise NotFinite(_bad_gradient(float(grads.flat[at]), use.table, whose, when))

    def _parameter_at(self, table: str, at: int) -> str:
        """The parameter that value `at` of a dense table belongs to."""
        ends = accumulate(size for _, size in self._sizes[table])
        return next(name for (name, _), end in zip(self._sizes[table], ends, strict=True) if at < end)


def _bad_gradient(value: float, table: str, whose: str, when: str) -> str:
    return (
        f"the gradient {when} is {value} for {whose} (table {table}), though the loss is finite. It was not applied: "
        "look for a square root, logarithm or division at 0 in the model or its loss, or lower the learning rate."
    )


def another_model(why: str) -> ModelError:
    return ModelError(
        f"the checkpoint is of another model or optimizer: {why}. "
        "Train with the model that made it, or start a new run."
    )
