"""Nodes of the Ray cluster that this process is connected to: which are there, and which are about to leave.

A node is being drained from the moment when Ray is told that it will leave: by its autoscaler, or by `ray drain-node`.
Nothing new starts there, and what runs goes on until somebody ends the node. A node on which nothing is reserved ends
at once, and with it every actor, on whatever node, that a program there has started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

HOLD_S = 5.0
"""Seconds to wait for a reservation on the own node, which is there at once unless the node is being drained."""
HELD = 0.001
"""How much of the resource that stands for the node itself is reserved."""


def staying_nodes() -> dict[str, Mapping[str, float]]:
    """The resources of the nodes that are there and stay, by Ray's id of the node."""
    import ray

    leaving = leaving_nodes()
    return {
        node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in leaving
    }


def is_elsewhere(resource: str, node: str) -> bool:
    """Whether a node other than this one has units of a resource, and stays."""
    return any(resources.get(resource) for name, resources in staying_nodes().items() if name != node)


def leaving_nodes() -> set[str]:
    """Ray's ids of the nodes that are being drained, also of those that have gone since."""
    from ray._private.state import state

    return set(state.get_draining_nodes())


def own_node() -> str:
    """Ray's id of the node on which this process is."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


@contextmanager
def held_own_node() -> Iterator[None]:
    """Reserve a trifle of this process's node, so that Ray does not end the node at once when it is to be drained.

    Connecting to Ray reserves nothing, and the actors that this process starts may all be on other nodes.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    own = own_node()
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == own)
    name = next(name for name in resources if name.startswith("node:") and not name.startswith("node:__"))
    group = placement_group([{name: HELD}], bundle_label_selector=[{"ray.io/node-id": own}])
    try:
        group.wait(HOLD_S)
        yield
    finally:
        with suppress(Exception):  # of Ray: it is gone
            remove_placement_group(group)
