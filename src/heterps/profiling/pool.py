"""Pool the measurements of layers that are alike: the same kind, sizes and parameters. Pure functions.

    linear 400 x 400    0.81 ms  alpha .96  \
    linear 400 x 400    0.84 ms  alpha .64   +-->  0.83 ms, alpha .96 for each of the three: medians
    linear 400 x 400    0.83 ms  alpha .97  /

One disturbed run then moves neither the time nor the share of a layer. What depends on the place of a layer, the values
that cross its border, stays its own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from heterps.profiling.profile import Cost, LayerProfile

SIZES = ("kind", "input_bytes", "weight_bytes", "output_bytes", "dense_bytes", "row_bytes")
OF_SERVERS = ("server_s", "server_fixed_s", "server_moves_s")
OF_COMPUTE = ("compute_s", "compute_fixed_s", "alpha", "spread")
ERRORS = ("error", "alpha_error", "beta_error")
OF_SYNC = ("sync_s", "sync_fixed_s", "beta")


def pooled(layers: Sequence[LayerProfile]) -> tuple[LayerProfile, ...]:
    """Return the layers, in which those that are alike have the medians of their measurements."""
    groups: dict[object, list[LayerProfile]] = {}
    for layer in layers:
        groups.setdefault(tuple(getattr(layer, field) for field in SIZES), []).append(layer)
    pools = {id(layer): group for group in groups.values() if len(group) > 1 for layer in group}
    return tuple(_pooled(layer, pools[id(layer)]) if id(layer) in pools else layer for layer in layers)


def _pooled(layer: LayerProfile, group: Sequence[LayerProfile]) -> LayerProfile:
    costs = {name: _cost(cost, [other.costs[name] for other in group]) for name, cost in layer.costs.items()}
    known = [field for field in OF_SERVERS if getattr(layer, field) is not None]
    return layer.model_copy(update={**_medians(group, known), "costs": costs})


def _cost(cost: Cost, group: Sequence[Cost]) -> Cost:
    fields = OF_COMPUTE + (OF_SYNC if cost.sync_s > 0 else ())
    errors: dict[str, float] = {}
    for field in ERRORS:
        if known := [error for other in group if (error := getattr(other, field)) is not None]:
            errors[field] = statistics.median(known) / len(known) ** 0.5
    return cost.model_copy(update={**_medians(group, fields), **errors})


def _medians(group: Sequence[object], fields: Sequence[str]) -> dict[str, float]:
    return {field: statistics.median(getattr(one, field) for one in group) for field in fields}
