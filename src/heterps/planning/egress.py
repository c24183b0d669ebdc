"""Traffic between zones: the bytes of a batch that leave a zone, and what they cost.

    zone a                                      zone b
    stage 1 on cpu  ─────── activations ─────>  stage 2 on v100      borders [N, T, T]: by the first layer of stage 2
       │            <──────── gradients ──────     │                 and the resources of both stages
    servers on cpu  <─ rows, weights, gradients ───┘                 with servers [T, N, 2]: by layer and resource

A resource is in one zone, so a schedule says in which zones its stages are; units of one kind in two zones are two
resources of the cluster. Servers are in the zone of theirs. What travels for a batch does not depend on the seconds
that it takes, and adds up along the stages: the searches carry it beside the seconds.

All costs are weights (market.py): USD of a batch times 3,600.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heterps.config import Cluster
from heterps.planning.real import GB, Conditions, dense_bytes, row_bytes
from heterps.profiling.profile import Profile

Floats = npt.NDArray[np.float64]


def border_weights(profile: Profile, cluster: Cluster, resources: Sequence[str]) -> Floats:
    """Return the array [N, T, T]: the weight of a layer's input, and its gradients back, from one resource to another.

    The first layer reads data, which costs nothing here.
    """
    weights = np.zeros((len(profile.layers), len(resources), len(resources)))
    for t, one in enumerate(resources):
        for s, other in enumerate(resources):
            both_ways = _weight(cluster, one, other) + _weight(cluster, other, one)
            weights[1:, t, s] = [both_ways * layer.input_bytes for layer in profile.layers[1:]]
    return weights


def server_weights(profile: Profile, cluster: Cluster, resources: Sequence[str], conditions: Conditions) -> Floats:
    """Return the array [T, N, 2]: the weight of what a layer exchanges with the servers, in all and for each worker.

    Rows are counted half each way. Weights go to a worker and their gradients back: in rounds to every worker of a
    stage, otherwise once a batch; in an all-reduce they stay among workers of one zone.
    """
    weights = np.zeros((len(resources), len(profile.layers), 2))
    if not any(layer.server_s > 0 for layer in profile.layers):
        return weights
    rows = np.array([row_bytes(layer) / 2 for layer in profile.layers])
    dense = np.array([dense_bytes(layer) for layer in profile.layers], np.float64) * (not conditions.all_reduce)
    for t, name in enumerate(resources):
        both_ways = _weight(cluster, name, cluster.server_resource) + _weight(cluster, cluster.server_resource, name)
        weights[t, :, 0] = both_ways * (rows if conditions.in_rounds else rows + dense)
        weights[t, :, 1] = both_ways * dense * conditions.in_rounds
    return weights


def _weight(cluster: Cluster, source: str, target: str) -> float:
    """Return the weight of one byte from a unit of `source` to one of `target`."""
    return cluster.egress_price(source, target) / GB * 3600
