"""What the models of the zoo share: fully connected layers, and a look at the slots they are given."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from heterps.config import Schema
from heterps.errors import ModelError


def tower(num_inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Fully connected layers with ReLU between them, down to one logit."""
    layers = activated(num_inputs, hidden)
    layers.add_module("logit", nn.Linear(hidden[-1] if hidden else num_inputs, 1))
    return layers


def activated(num_inputs: int, widths: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Fully connected layers, the activation after each: linear1, relu1, linear2, relu2, ..."""
    layers: list[tuple[str, nn.Module]] = []
    for i, width in enumerate(widths, start=1):
        layers.append((f"linear{i}", nn.Linear(num_inputs, width)))
        layers.append((f"{activation.__name__.lower()}{i}", activation()))
        num_inputs = width
    return nn.Sequential(OrderedDict(layers))


def need_slots(schema: Schema, model: str, least: int = 1, roles: str = "") -> tuple[str, ...]:
    """The schema's slots, if there are at least so many; `roles` says what the model does with them."""
    if not schema.slots:
        raise ModelError(
            f"{model} embeds ids, but the schema names no slots: add columns of ids to data.columns.slots."
        )
    if len(schema.slots) < least:
        raise ModelError(
            f"{model} needs at least {least} slots ({roles}), but the schema names {len(schema.slots)}: "
            f"{', '.join(schema.slots)}. Add columns of ids to data.columns.slots."
        )
    return schema.slots


def need_columns(schema: Schema, model: str, argument: str, names: Sequence[str]) -> tuple[str, ...]:
    """The `names` that an argument gave, if they are slots of the schema."""
    if isinstance(names, str) or not names:
        raise ModelError(f"{model}: {argument} must be a list of at least one slot, got {names!r}.")
    if missing := [name for name in names if name not in schema.slots]:
        raise ModelError(
            f"{model}: {argument} names {', '.join(map(str, missing))}, but the schema's slots are "
            f"{', '.join(schema.slots)}. Name some of these, or add the columns to data.columns.slots."
        )
    return tuple(names)


def need_same_ids(schema: Schema, model: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Each pair of slots must hold ids of one kind, so that an id has the same row whichever slot it stands in."""
    apart = {slot: other for slot, other in pairs if schema.ids_of(slot) != schema.ids_of(other)}
    if apart:
        wanted = ", ".join(f"{slot}: {other}" for slot, other in apart.items())
        raise ModelError(
            f"{model}: the same id must have the same row in {' and '.join(next(iter(apart.items())))}, but ids of "
            f"different slots are kept apart. Add to data.columns: same_ids: {{{wanted}}}."
        )
