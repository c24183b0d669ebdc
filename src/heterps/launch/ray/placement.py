"""Placement: what a role of a job takes of a Ray cluster, and what to say where the cluster has not got it.

    cluster file            a worker of a stage on v100            a node that has some
    v100: {device: cuda} -> {"v100": 1, "CPU": 1, "GPU": 1}    <-  ray start --resources='{"v100": 8}'

The name of a resource is a label: nodes say how many units of it they have, and Ray counts them. Everything here is
about numbers and words; reservations.py talks to Ray.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from heterps.devices import kind_of, ray_resource
from heterps.errors import ConfigError

RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")
"""Resource names that Ray counts by itself: no node can be labelled with these."""

Bundle = dict[str, int]


def check_labels(resources: Iterable[str]) -> None:
    """Raises ConfigError where the name of a resource cannot be a Ray label."""
    if taken := [name for name in RAYS_OWN if name in set(resources)]:
        raise ConfigError(
            f"cluster: a resource named {taken[0]!r} cannot be a label of a Ray node, because Ray counts its own "
            f"{', '.join(RAYS_OWN)}: give it another name, such as {taken[0].lower() + '_unit'!r}"
        )


def bundle_of(resource: str, device: str, num_cores: int) -> Bundle:
    """The Ray bundle of one unit of `resource`. Ray hides accelerators from actors that do not ask for them."""
    bundle: Bundle = {resource: 1}
    if num_cores:
        bundle["CPU"] = num_cores
    if accelerator := ray_resource(device):
        if device != kind_of(device):
            raise ConfigError(
                f"cluster: {resource}: Ray chooses which of a node's devices a worker gets, so `device: {device}` "
                f"cannot name one: write `device: {kind_of(device)}`"
            )
        bundle[accelerator] = 1
    return bundle


def lacking(bundles: Sequence[Bundle], there: Mapping[str, float]) -> dict[str, float]:
    """How much more the bundles take together than is `there`, by resource name."""
    wanted: Counter[str] = Counter()
    for bundle in bundles:
        wanted.update(bundle)
    return {name: amount - there.get(name, 0) for name, amount in wanted.items() if amount > there.get(name, 0)}


def explain(bundles: Sequence[Bundle], total: Mapping[str, float], free: Mapping[str, float], waited_s: float) -> str:
    """Why a cluster has no room for the bundles, and what to do.

    total  what the cluster has, without what the job holds already
    free   what nobody holds
    """
    begin = f"the Ray cluster had no place for the job within {waited_s:.0f} s: "
    if missing := lacking(bundles, total):
        labels = {name: amount for name, amount in missing.items() if name not in RAYS_OWN}
        return begin + f"it lacks {_amounts(missing)}. Start a node with them: {start_command(labels)}"
    if busy := lacking(bundles, free):
        return begin + f"others hold {_amounts(busy)} that it needs. Wait for them, or start another node"
    return (
        begin
        + "it has enough of everything, but not on the same nodes: every worker needs a unit of its resource, and "
        f"what goes with it, on one node ({'; '.join(sorted({json.dumps(dict(bundle)) for bundle in bundles}))})"
    )


def start_command(labels: Mapping[str, float]) -> str:
    """The command that starts a Ray node with these labels."""
    resources = f" --resources='{json.dumps({name: int(amount) for name, amount in labels.items()})}'" if labels else ""
    return f"ray start --address=HEAD:6379{resources}"


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items())
