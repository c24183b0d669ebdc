"""Common parts of the zoo's models: fully connected layers, and checks of the slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from heterps.config import Schema
from heterps.errors import ModelError


def tower(num_inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Make fully connected layers with ReLU between them that end in one logit."""
    layers = activated(num_inputs, hidden)
    layers.add_module("logit", nn.Linear(hidden[-1] if hidden else num_inputs, 1))
    return layers


def activated(num_inputs: int, widths: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Make fully connected layers with an activation after each: linear1, relu1, linear2, relu2, ..."""
    layers: list[tuple[str, nn.Module]] = []
    for i, width in enumerate(widths, start=1):
        layers.append((f"linear{i}", nn.Linear(num_inputs, width)))
        layers.append((f"{activation.__name__.lower()}{i}", activation()))
        num_inputs = width
    return nn.Sequential(OrderedDict(layers))


def need_slots(schema: Schema, model: str, least: int = 1, roles: str = "") -> tuple[str, ...]:
    """Return the schema's slots; raises ModelError if there are fewer than `least`, whose `roles` the text names."""
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
    """Return the `names` of an argument; raises ModelError unless all are slots of the schema."""
    if isinstance(names, str) or not names:
        raise ModelError(f"{model}: {argument} must be a list of at least one slot, got {names!r}.")
    if missing := [name for name in names if name not in schema.slots]:
        raise ModelError(
            f"{model}: {argument} names {', '.join(map(str, missing))}, but the schema's slots are "
            f"{', '.join(schema.slots)}. Name some of these, or add the columns to data.columns.slots."
        )
    return tuple(names)


def need_same_ids(schema: Schema, model: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise ModelError unless each pair of slots shares its ids, so that an id has the same row in both slots."""
    apart = {slot: other for slot, other in pairs if schema.ids_of(slot) != schema.ids_of(other)}
    if apart:
        wanted = ", ".join(f"{slot}: {other}" for slot, other in apart.items())
        raise ModelError(
            f"{model}: the same id must have the same row in {' and '.join(next(iter(apart.items())))}, but ids of "
            f"different slots are kept apart. Add to data.columns: same_ids: {{{wanted}}}."
        )
