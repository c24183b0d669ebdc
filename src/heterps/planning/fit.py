"""Whether a profile and a cluster fit each other: each resource has costs, and each layer can run somewhere."""

from __future__ import annotations

from collections.abc import Sequence

from heterps.errors import ConfigError
from heterps.profiling.profile import Cost, Profile


def check_fit(profile: Profile, usable: Sequence[str], server_resource: str) -> None:
    """Raise ConfigError unless every resource has costs (the servers' may have none) and every layer can run."""
    missing = [name for name in usable if name not in (*profile.resources, server_resource)]
    if missing:
        raise ConfigError(
            f"the cluster has resource {', '.join(map(repr, missing))}, but the profile of {profile.model!r} has costs "
            f"for {', '.join(map(repr, profile.resources))} only. Profile the model for it, say with `kind` in the "
            "cluster which of these it is, or set its limit to 0."
        )
    for layer in profile.layers:
        if not any(name in layer.costs for name in usable):
            raise ConfigError(
                f"layer {layer.name!r} can run on {', '.join(map(repr, layer.costs))} only, and the cluster rents "
                f"{', '.join(map(repr, usable))}. Profile it for one of these, or add a resource to the cluster."
            )
    instant = [any(_is_free(layer.costs[name]) for name in usable if name in layer.costs) for layer in profile.layers]
    if all(instant) and not any(layer.server_s > 0 for layer in profile.layers):
        raise ConfigError(
            f"the profile of {profile.model!r} says that no layer takes any time (compute_s, sync_s and server_s are "
            "all 0), so no throughput or cost follows from it. Profile the model again."
        )


def _is_free(cost: Cost) -> bool:
    return cost.compute_s == 0 and cost.sync_s == 0
